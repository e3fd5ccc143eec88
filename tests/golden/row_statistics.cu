// cf_sm90_gemm_bf16_fp32_128x224x64_c1x1_cooperative_b7ca12c1
//   y = silu(a @ b.T * row_scale + bias)
//   y_wide = y
//   peak = max(abs(y))
//   mean = sum(y) * 0.005
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using row_scale = cf::ColumnVector<0, cf::fp32>;
using bias = cf::RowVector<1, cf::fp32>;

using inverse_n = cf::Imm<0x3ba3d70a>;  // 0.005

// phase 0
using row_scale_column = cf::Column<0, row_scale>;
using y = cf::Silu<cf::Add<cf::Mul<cf::Acc, row_scale_column>, bias>>;
using reduce_peak = cf::RowReduce<0, cf::Max, cf::Abs<y>>;
using total = cf::RowReduce<1, cf::Sum, y>;
using Phase0 =
    cf::Phase<cf::Tiles<>, cf::Columns<row_scale_column>, cf::Lets<y>,
              cf::Effects<reduce_peak, total, cf::TileStore<0, cf::bf16, y>, cf::TileStore<1, cf::fp32, y>>>;

// by the last tile of each row block
using peak = cf::Column<0, cf::Stat<0, cf::value>>;
using mean = cf::Column<1, cf::Mul<cf::Stat<1, cf::value>, inverse_n>>;
using RowTail =
    cf::RowTail<cf::Columns<peak, mean>,
                cf::Effects<cf::ColumnStore<2, cf::fp32, peak>, cf::ColumnStore<3, cf::fp32, mean>>>;

using Kernel = cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/200>, cf::Cooperative<128, 224, 64>,
                                   cf::Cluster<1, 1>, cf::Stages<5>, cf::TileSlots<0>,
                                   cf::Operands<row_scale, bias>, cf::Program<Phase0, RowTail>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_fp32_128x224x64_c1x1_cooperative_b7ca12c1, program::Kernel)
