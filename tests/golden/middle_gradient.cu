// cf_sm90_gemm_bf16_128x128x64_c1x2_cooperative_5175f0f8
//   pre = a0 @ b0.T + bias
//   d_pre = silu_backward(a1 @ b1.T, pre)
//   middle = silu(pre)
//   d_b0 = col_sum(d_pre)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using bias = cf::RowVector<0, cf::bf16>;

using half = cf::Imm<0x3f000000>;  // 0.5

// phase 0
using part_of_pre = cf::Add<cf::Mul<cf::Product<0>, half>, cf::Mul<bias, half>>;
using d_pre = cf::SiluBackwardOfDouble<cf::Product<1>, part_of_pre>;
using sums = cf::ColReduce<0, cf::Sum, d_pre>;
using middle = cf::SiluOfDouble<part_of_pre>;
using Phase0 =
    cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<part_of_pre, d_pre>,
              cf::Effects<sums, cf::TileStore<0, cf::bf16, d_pre>, cf::TileStore<1, cf::bf16, middle>>>;

// by the last tile of each block of columns
using ColTail = cf::ColTail<cf::Effects<cf::RowStore<2, cf::bf16, cf::ColStat<0, cf::value>>>>;

using Gemms = cf::TwoGemms<cf::bf16, /*N=*/512, cf::Majors<cf::KMajor, cf::KMajor>,
                           cf::Majors<cf::KMajor, cf::MNMajor>>;
using Kernel = cf::sm90::FusedGemm<Gemms, cf::Cooperative<128, 128, 64>, cf::Cluster<1, 2>, cf::Stages<6>,
                                   cf::TileSlots<0>, cf::Operands<bias>, cf::Program<Phase0, ColTail>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x128x64_c1x2_cooperative_5175f0f8, program::Kernel)
