// cf_sm90_gemm_bf16_128x64x64_c1x2_pingpong_43ec8af2
//   y = silu(a @ b0.T) * (a @ b1.T)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using half = cf::Imm<0x3f000000>;  // 0.5

// phase 0
using y = cf::Mul<cf::SiluOfDouble<cf::Mul<cf::Product<0>, half>>, cf::Product<1>>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel = cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/11008, /*Products=*/2>, cf::Pingpong<128, 64, 64>,
                                   cf::Cluster<1, 2>, cf::Stages<7>, cf::TileSlots<0>, cf::Operands<>,
                                   cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x64x64_c1x2_pingpong_43ec8af2, program::Kernel)
