// cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong_cf249e78
//   y = a @ b.T + bias
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using bias = cf::RowVector<0, cf::bf16>;

// phase 0
using y = cf::Add<cf::Acc, bias>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/1024>, cf::Pingpong<128, 128, 64>, cf::Cluster<1, 2>,
                        cf::Stages<7>, cf::TileSlots<0>, cf::Operands<bias>, cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong_cf249e78, program::Kernel)
