// cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong_d76615cb
//   total = full_sum(relu(a @ b.T))
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

// phase 0
using total = cf::FullReduce<0, cf::Sum, cf::Relu<cf::Acc>>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<total>>;

// by the last tile of all
using FullTail = cf::FullTail<cf::Effects<cf::ScalarStore<0, cf::fp32, cf::FullStat<0, cf::value>>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/8192>, cf::Pingpong<128, 128, 64>, cf::Cluster<1, 2>,
                        cf::Stages<7>, cf::TileSlots<0>, cf::Operands<>, cf::Program<Phase0, FullTail>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong_d76615cb, program::Kernel)
