// cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong2_dec04e5c
//   dx = gelu_backward(a @ b.T, x)
//   dbias = col_sum(dx)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using x = cf::Tile<0, cf::bf16>;

// phase 0
using dx = cf::GeluBackward<cf::Acc, x>;
using dbias = cf::ColReduce<0, cf::Sum, dx>;
using Phase0 =
    cf::Phase<cf::Tiles<x>, cf::Columns<>, cf::Lets<dx>, cf::Effects<dbias, cf::TileStore<0, cf::bf16, dx>>>;

// by the last tile of each block of columns
using ColTail = cf::ColTail<cf::Effects<cf::RowStore<1, cf::fp32, cf::ColStat<0, cf::value>>>>;

using Kernel = cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/4096, 1, cf::KMajor, cf::MNMajor>,
                                   cf::Cooperative<128, 128, 64, 2>, cf::Cluster<1, 2>, cf::Stages<6>,
                                   cf::TileSlots<3>, cf::Operands<x>, cf::Program<Phase0, ColTail>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong2_dec04e5c, program::Kernel)
