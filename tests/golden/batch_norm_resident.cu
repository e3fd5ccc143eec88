// cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_cooperative_77f6735a
//   x = a @ b.T + bias
//   rstd = rsqrt(col_var(x) + eps)
//   y = (x - col_mean(x)) * rstd * bn_weight + bn_bias
//   mean = col_mean(x)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using bias = cf::RowVector<0, cf::bf16>;
using eps = cf::Scalar<0>;
using bn_weight = cf::RowVector<1, cf::bf16>;
using bn_bias = cf::RowVector<2, cf::bf16>;

// phase 0
using x = cf::Add<cf::Acc, bias>;
using stats = cf::ColReduce<0, cf::Welford, x>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<x>, cf::Effects<cf::Keep<x>, stats>>;

// phase 1
using rstd = cf::Rsqrt<cf::Add<cf::ColStat<0, cf::variance>, eps>>;
using mul10 = cf::Mul<cf::Sub<cf::Kept, cf::ColStat<0, cf::mean>>, rstd>;
using mul13 = cf::Mul<mul10, bn_weight>;
using y = cf::Add<mul13, bn_bias>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

// by the first tile of each block of columns
using ColTailEffects =
    cf::Effects<cf::RowStore<1, cf::fp32, cf::ColStat<0, cf::mean>>, cf::RowStore<2, cf::fp32, rstd>>;
using ColTail = cf::ColTail<ColTailEffects>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/512>, cf::Cooperative<128, 128, 64>, cf::Cluster<1, 2>,
                        cf::Stages<6>, cf::TileSlots<0>, cf::Operands<bias, bn_weight, bn_bias>,
                        cf::Program<Phase0, Phase1, ColTail>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_cooperative_77f6735a, program::Kernel)
