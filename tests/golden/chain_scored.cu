// cf_sm90_chain_bf16_fp32_72x200x96_w3_b471fc34
//   seen = where(row >= column, a @ w0.T * (row_scale * temperature) + score_bias, 0)
//   p = seen * sigmoid(seen * slope)
//   y = p @ w1.T * row_scale
//   y_wide = y
//   peak = max(abs(y))
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using row_scale = cf::ColumnVector<0, cf::fp32>;
using temperature = cf::Scalar<0>;
using score_bias = cf::Tile<1, cf::bf16>;
using slope = cf::RowVector<2, cf::fp32>;
using row_scale_2 = cf::ColumnVector<3, cf::fp32>;

using zero = cf::Imm<0x00000000>;  // 0.0
using half = cf::Imm<0x3f000000>;  // 0.5

// a column, computed once
using slope_vector = cf::Vector<slope>;
using Vectors = cf::Vectors<slope_vector>;

// link 0: over (M, H), and on as A of link 1
using mul2 = cf::Column<0, cf::Mul<row_scale, temperature>>;
using biased = cf::Add<cf::Mul<cf::Acc, mul2>, score_bias>;
using seen = cf::Where<cf::Ge<cf::RowIndex, cf::ColumnIndex>, biased, zero>;
using p = cf::Mul<seen, cf::SigmoidOfDouble<cf::Mul<cf::Mul<seen, slope_vector>, half>>>;
using Middle = cf::Phase<cf::Tiles<score_bias>, cf::Columns<mul2>, cf::Lets<seen>, cf::Effects<cf::Pass<p>>>;

// link 1, phase 0
using row_scale_column = cf::Column<0, row_scale_2>;
using y = cf::Mul<cf::Acc, row_scale_column>;
using reduce_peak = cf::RowReduce<0, cf::Max, cf::Abs<y>>;
using Phase0 =
    cf::Phase<cf::Tiles<>, cf::Columns<row_scale_column>, cf::Lets<y>,
              cf::Effects<reduce_peak, cf::TileStore<0, cf::bf16, y>, cf::TileStore<1, cf::fp32, y>>>;

// link 1, phase 1
using peak = cf::Column<0, cf::Stat<0, cf::value>>;
using Phase1 =
    cf::Phase<cf::Tiles<>, cf::Columns<peak>, cf::Lets<>, cf::Effects<cf::ColumnStore<2, cf::fp32, peak>>>;

using Kernel = cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/200>, Middle, cf::Gemm<cf::bf16, /*N=*/96>,
                                    cf::ChainSchedule</*Warpgroups=*/3, /*Block=*/64, /*Buffers=*/1>,
                                    cf::RowsInShared</*K=*/72>, cf::Resident, cf::TileSlots<4>,
                                    cf::Operands<row_scale, score_bias, slope, row_scale_2>, Vectors,
                                    cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_fp32_72x200x96_w3_b471fc34, program::Kernel)
