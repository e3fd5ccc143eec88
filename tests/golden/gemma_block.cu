// cf_sm90_gemm_bf16_128x288x64_c1x2_cooperative_6b14df6e
//   h = a @ b.T * rsqrt(sumsq(a @ b.T) * 0.000434027778 + eps) * (post_weight + weight_offset) + residual
//   y = h * rsqrt(sumsq(h) * 0.000434027778 + eps) * (pre_weight + weight_offset)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using residual = cf::Tile<0, cf::bf16>;
using post_weight = cf::RowVector<1, cf::bf16>;
using pre_weight = cf::RowVector<2, cf::bf16>;
using eps = cf::Scalar<0>;
using weight_offset = cf::Scalar<1>;

using inverse_n = cf::Imm<0x39e38e39>;  // 0.00043402777777777775

// phase 0
using sumsq_post = cf::RowReduce<0, cf::SumSq, cf::Acc>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<sumsq_post>>;

// phase 1
using rrms_post = cf::Column<0, cf::Rsqrt<cf::Add<cf::Mul<cf::Stat<0, cf::value>, inverse_n>, eps>>>;
using h = cf::Add<cf::Mul<cf::Mul<cf::Acc, rrms_post>, cf::Add<post_weight, weight_offset>>, residual>;
using sumsq_pre = cf::RowReduce<1, cf::SumSq, h>;
using Phase1 = cf::Phase<cf::Tiles<residual>, cf::Columns<rrms_post>, cf::Lets<h>,
                         cf::Effects<cf::Keep<h>, sumsq_pre, cf::TileStore<0, cf::bf16, h>>>;

// phase 2
using rrms_pre = cf::Column<0, cf::Rsqrt<cf::Add<cf::Mul<cf::Stat<1, cf::value>, inverse_n>, eps>>>;
using y = cf::Mul<cf::Mul<cf::Kept, rrms_pre>, cf::Add<pre_weight, weight_offset>>;
using Phase2 =
    cf::Phase<cf::Tiles<>, cf::Columns<rrms_pre>, cf::Lets<>, cf::Effects<cf::TileStore<1, cf::bf16, y>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/2304>, cf::Cooperative<128, 288, 64>, cf::Cluster<1, 2>,
                        cf::Stages<4>, cf::TileSlots<2>, cf::Operands<residual, post_weight, pre_weight>,
                        cf::Program<Phase0, Phase1, Phase2>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x288x64_c1x2_cooperative_6b14df6e, program::Kernel)
