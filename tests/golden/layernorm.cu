// cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong_d721e945
//   x = a @ b.T + bias + residual
//   rstd = rsqrt(var(x) + eps)
//   y = (x * rstd - mean(x) * rstd) * ln_weight + ln_bias
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using bias = cf::RowVector<0, cf::bf16>;
using residual = cf::Tile<1, cf::bf16>;
using ln_weight = cf::RowVector<2, cf::bf16>;
using ln_bias = cf::RowVector<3, cf::bf16>;
using eps = cf::Scalar<0>;

// phase 0
using x = cf::Add<cf::Add<cf::Acc, bias>, residual>;
using stats = cf::RowReduce<0, cf::Welford, x>;
using Phase0 = cf::Phase<cf::Tiles<residual>, cf::Columns<>, cf::Lets<x>, cf::Effects<cf::Keep<x>, stats>>;

// phase 1
using rstd = cf::Column<0, cf::Rsqrt<cf::Add<cf::Stat<0, cf::variance>, eps>>>;
using mean_scaled = cf::Column<1, cf::Mul<cf::Stat<0, cf::mean>, rstd>>;
using y = cf::Add<cf::Mul<cf::Sub<cf::Mul<cf::Kept, rstd>, mean_scaled>, ln_weight>, ln_bias>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<rstd, mean_scaled>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/1024>, cf::Pingpong<128, 128, 64>, cf::Cluster<1, 2>,
                        cf::Stages<6>, cf::TileSlots<8>, cf::Operands<bias, residual, ln_weight, ln_bias>,
                        cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong_d721e945, program::Kernel)
