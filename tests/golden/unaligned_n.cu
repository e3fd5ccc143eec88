// cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong2_3b631c89
//   x = a @ b.T + bias + residual
//   rstd = rsqrt(var(x) + eps)
//   y = x * rstd - mean(x) * rstd
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using bias = cf::RowVector<0, cf::bf16>;
using residual = cf::StridedTile<1, cf::bf16>;
using eps = cf::Scalar<0>;

// phase 0
using x = cf::Add<cf::Add<cf::Acc, bias>, residual>;
using stats = cf::RowReduce<0, cf::Welford, x>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<x>, cf::Effects<cf::Keep<x>, stats>>;

// phase 1
using rstd = cf::Column<0, cf::Rsqrt<cf::Add<cf::Stat<0, cf::variance>, eps>>>;
using mean_scaled = cf::Column<1, cf::Mul<cf::Stat<0, cf::mean>, rstd>>;
using y = cf::Sub<cf::Mul<cf::Kept, rstd>, mean_scaled>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<rstd, mean_scaled>, cf::Lets<>,
                         cf::Effects<cf::StridedStore<0, cf::bf16, y>>>;

using Kernel = cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/1001>, cf::Cooperative<128, 128, 64, 2>,
                                   cf::Cluster<1, 2>, cf::Stages<7>, cf::TileSlots<0>,
                                   cf::Operands<bias, residual>, cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong2_3b631c89, program::Kernel)
