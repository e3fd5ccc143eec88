// cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong_9afde84f
//   lse = logsumexp(a @ b.T)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

// phase 0
using stats = cf::RowReduce<0, cf::Softmax, cf::Acc>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<stats>>;

// by the last tile of each row block
using lse = cf::Column<0, cf::Stat<0, cf::lse>>;
using RowTail = cf::RowTail<cf::Columns<lse>, cf::Effects<cf::ColumnStore<0, cf::fp32, lse>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/8192>, cf::Pingpong<128, 128, 64>, cf::Cluster<1, 2>,
                        cf::Stages<7>, cf::TileSlots<0>, cf::Operands<>, cf::Program<Phase0, RowTail>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong_9afde84f, program::Kernel)
