// cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong_faa09d30
//   q = a @ b.T + bias
//   q in heads of 128 columns
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using bias = cf::RowVector<0, cf::bf16>;

// phase 0
using q = cf::Add<cf::Acc, bias>;
using Phase0 =
    cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::StridedStore<0, cf::bf16, q>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/4096>, cf::Pingpong<128, 128, 64>, cf::Cluster<1, 2>,
                        cf::Stages<7>, cf::TileSlots<0>, cf::Operands<bias>, cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong_faa09d30, program::Kernel)
