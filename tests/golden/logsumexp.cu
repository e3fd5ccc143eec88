// cf_sm90_gemm_bf16_fp32_128x256x64_c1x2_cooperative_1744db9d
//   lse = max(a @ b.T) + log(sum(exp(a @ b.T - max(a @ b.T))))
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace {

// phase 0
using reduce_peak = cf::RowReduce<0, cf::Max, cf::Acc>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<reduce_peak>>;

// phase 1
using peak = cf::Column<0, cf::Stat<0, cf::value>>;
using total = cf::RowReduce<1, cf::Sum, cf::Exp<cf::Sub<cf::Acc, peak>>>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<peak>, cf::Lets<>, cf::Effects<total>>;

// phase 2
using lse = cf::Column<0, cf::Add<cf::Stat<0, cf::value>, cf::Log<cf::Stat<1, cf::value>>>>;
using Phase2 =
    cf::Phase<cf::Tiles<>, cf::Columns<lse>, cf::Lets<>, cf::Effects<cf::ColumnStore<0, cf::fp32, lse>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/8192>, cf::Cooperative<128, 256, 64>, cf::Cluster<1, 2>,
                        cf::Stages<4>, cf::TileSlots<0>, cf::Operands<>, cf::Program<Phase0, Phase1, Phase2>>;
}  // namespace
COMFUSE_EXPORT(cf_sm90_gemm_bf16_fp32_128x256x64_c1x2_cooperative_1744db9d, Kernel)
