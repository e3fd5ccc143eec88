// cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong2_3dd0c6fa
//   x = where(row >= column, a @ b.mT * scale, -inf)
//   p = exp(x - max(x)) * reciprocal(sumexp(x))
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using scale = cf::Scalar<0>;

using minus_infinity = cf::Imm<0xff800000>;  // -inf

// phase 0
using x = cf::Where<cf::Ge<cf::RowIndex, cf::ColumnIndex>, cf::Mul<cf::Acc, scale>, minus_infinity>;
using softmax = cf::RowReduce<0, cf::Softmax, x>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<x>, cf::Effects<cf::Keep<x>, softmax>>;

// phase 1
using peak = cf::Column<0, cf::Stat<0, cf::maximum>>;
using total_inverse = cf::Column<1, cf::Reciprocal<cf::Stat<0, cf::sumexp>>>;
using p = cf::Mul<cf::Exp<cf::Sub<cf::Kept, peak>>, total_inverse>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<peak, total_inverse>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, p>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/2048, 1, cf::KMajor, cf::KMajor, /*Batched=*/true>,
                        cf::Cooperative<128, 128, 64, 2>, cf::Cluster<1, 2>, cf::Stages<7>, cf::TileSlots<0>,
                        cf::Operands<>, cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_128x128x64_c1x2_pingpong2_3dd0c6fa, program::Kernel)
