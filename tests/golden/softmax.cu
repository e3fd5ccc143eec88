// cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong2_27d41032
//   masked = a @ b.T * scale + mask
//   y = exp(masked - max(masked)) * reciprocal(sumexp(masked))
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using mask = cf::Tile<0, cf::fp32>;
using scale = cf::Scalar<0>;

// phase 0
using masked = cf::Add<cf::Mul<cf::Acc, scale>, mask>;
using masked_exp = cf::RowReduce<0, cf::Softmax, masked>;
using Phase0 =
    cf::Phase<cf::Tiles<mask>, cf::Columns<>, cf::Lets<masked>, cf::Effects<cf::Keep<masked>, masked_exp>>;

// phase 1
using peak = cf::Column<0, cf::Stat<0, cf::maximum>>;
using total_inverse = cf::Column<1, cf::Reciprocal<cf::Stat<0, cf::sumexp>>>;
using y = cf::Mul<cf::Exp<cf::Sub<cf::Kept, peak>>, total_inverse>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<peak, total_inverse>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/2048>, cf::Cooperative<128, 128, 64, 2>, cf::Cluster<1, 2>,
                        cf::Stages<6>, cf::TileSlots<2>, cf::Operands<mask>, cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong2_27d41032, program::Kernel)
