// cf_sm90_gemm_bf16_128x256x64_c2x1_cooperative_3a4dd6ee
//   x = a @ b.T + residual
//   y = x * rsqrt(sumsq(x) * 0.000244140625 + eps) * (rms_weight + weight_offset)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using residual = cf::Tile<0, cf::bf16>;
using rms_weight = cf::RowVector<1, cf::bf16>;
using eps = cf::Scalar<0>;
using weight_offset = cf::Scalar<1>;

using inverse_n = cf::Imm<0x39800000>;  // 0.000244140625

// phase 0
using x = cf::Add<cf::Acc, residual>;
using sumsq = cf::RowReduce<0, cf::SumSq, x>;
using Phase0 = cf::Phase<cf::Tiles<residual>, cf::Columns<>, cf::Lets<x>, cf::Effects<cf::Keep<x>, sumsq>>;

// phase 1
using rrms = cf::Column<0, cf::Rsqrt<cf::Add<cf::Mul<cf::Stat<0, cf::value>, inverse_n>, eps>>>;
using y = cf::Mul<cf::Mul<cf::Kept, rrms>, cf::Add<rms_weight, weight_offset>>;
using Phase1 =
    cf::Phase<cf::Tiles<>, cf::Columns<rrms>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel = cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/4096>, cf::Cooperative<128, 256, 64>,
                                   cf::Cluster<2, 1>, cf::Stages<3>, cf::TileSlots<8>,
                                   cf::Operands<residual, rms_weight>, cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x256x64_c2x1_cooperative_3a4dd6ee, program::Kernel)
