// cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong_77416fa2
//   rrms = rsqrt(group_sumsq(a @ b.T) * 0.0078125 + eps)
//   y = a @ b.T * rrms * weight
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using weight = cf::RowVector<0, cf::bf16>;
using eps = cf::Scalar<0>;

using inverse_head = cf::Imm<0x3c000000>;  // 0.0078125

// phase 0
using sumsq = cf::GroupReduce<0, cf::SumSq, 128, cf::Acc>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<sumsq>>;

// phase 1
using rrms = cf::Group<0, cf::Rsqrt<cf::Add<cf::Mul<cf::GroupStat<0, cf::value>, inverse_head>, eps>>>;
using y = cf::Mul<cf::Mul<cf::Acc, rrms>, weight>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, y>, cf::GroupStore<1, cf::fp32, rrms>>,
                         cf::Groups<rrms>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/4096>, cf::Pingpong<128, 128, 64>, cf::Cluster<1, 2>,
                        cf::Stages<7>, cf::TileSlots<0>, cf::Operands<weight>, cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong_77416fa2, program::Kernel)
