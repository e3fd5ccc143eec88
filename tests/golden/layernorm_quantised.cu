// cf_sm90_gemm_bf16_e4m3_fp32_128x256x64_c1x2_cooperative_243f3ae9
//   x = a @ b.T + residual
//   rstd = rsqrt(var(x) + eps)
//   y = (x * rstd - mean(x) * rstd) * ln_weight + ln_bias
//   scale = max(abs(y)) * 0.00223214286
//   quantised = y * reciprocal(scale)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using residual = cf::Tile<0, cf::bf16>;
using ln_weight = cf::RowVector<1, cf::bf16>;
using ln_bias = cf::RowVector<2, cf::bf16>;
using eps = cf::Scalar<0>;

using step = cf::Imm<0x3b124925>;  // 0.002232142857142857

// phase 0
using x = cf::Add<cf::Acc, residual>;
using stats = cf::RowReduce<0, cf::Welford, x>;
using Phase0 = cf::Phase<cf::Tiles<residual>, cf::Columns<>, cf::Lets<x>, cf::Effects<cf::Keep<x>, stats>>;

// phase 1
using rstd = cf::Column<0, cf::Rsqrt<cf::Add<cf::Stat<0, cf::variance>, eps>>>;
using mean_scaled = cf::Column<1, cf::Mul<cf::Stat<0, cf::mean>, rstd>>;
using y = cf::Add<cf::Mul<cf::Sub<cf::Mul<cf::Kept, rstd>, mean_scaled>, ln_weight>, ln_bias>;
using amax = cf::RowReduce<1, cf::Max, cf::Abs<y>>;
using Phase1 =
    cf::Phase<cf::Tiles<>, cf::Columns<rstd, mean_scaled>, cf::Lets<y>, cf::Effects<cf::Keep<y>, amax>>;

// phase 2
using scale = cf::Column<0, cf::Mul<cf::Stat<1, cf::value>, step>>;
using scale_inverse = cf::Column<1, cf::Reciprocal<scale>>;
using quantised = cf::Mul<cf::Kept, scale_inverse>;
using Phase2 =
    cf::Phase<cf::Tiles<>, cf::Columns<scale, scale_inverse>, cf::Lets<>,
              cf::Effects<cf::TileStore<0, cf::e4m3, quantised>, cf::ColumnStore<1, cf::fp32, scale>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/4096>, cf::Cooperative<128, 256, 64>, cf::Cluster<1, 2>,
                        cf::Stages<3>, cf::TileSlots<8>, cf::Operands<residual, ln_weight, ln_bias>,
                        cf::Program<Phase0, Phase1, Phase2>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_e4m3_fp32_128x256x64_c1x2_cooperative_243f3ae9, program::Kernel)
