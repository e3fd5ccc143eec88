// cf_sm90_gemm_bf16_128x256x64_c1x2_cooperative_ace3a7f6
//   y = a @ b.T
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

// phase 0
using Phase0 =
    cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::bf16, cf::Acc>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/4096>, cf::Cooperative<128, 256, 64>, cf::Cluster<1, 2>,
                        cf::Stages<4>, cf::TileSlots<0>, cf::Operands<>, cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x256x64_c1x2_cooperative_ace3a7f6, program::Kernel)
