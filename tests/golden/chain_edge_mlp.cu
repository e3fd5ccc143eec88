// cf_sm90_chain_bf16_128x128x128_w3_57a101ee
//   middle = silu(a @ w0.T + b0)
//   add4 = middle @ w1.T + b1 + residual
//   rstd = rsqrt(var(add4) + eps)
//   y = (add4 * rstd - mean(add4) * rstd) * norm_weight + norm_bias
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using b0 = cf::RowVector<0, cf::bf16>;
using b1 = cf::RowVector<1, cf::bf16>;
using residual = cf::Tile<2, cf::bf16>;
using norm_weight = cf::RowVector<3, cf::bf16>;
using norm_bias = cf::RowVector<4, cf::bf16>;
using eps = cf::Scalar<0>;

using half = cf::Imm<0x3f000000>;  // 0.5

// a column, computed once
using part_of_b0 = cf::Vector<cf::Mul<b0, half>>;
using b1_vector = cf::Vector<b1>;
using norm_weight_vector = cf::Vector<norm_weight>;
using norm_bias_vector = cf::Vector<norm_bias>;
using Vectors = cf::Vectors<part_of_b0, b1_vector, norm_weight_vector, norm_bias_vector>;

// link 0: over (M, H), and on as A of link 1
using middle = cf::SiluOfDouble<cf::Add<cf::Mul<cf::Acc, half>, part_of_b0>>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<middle>>>;

// link 1, phase 0
using add4 = cf::Add<cf::Add<cf::Acc, b1_vector>, residual>;
using stats = cf::RowReduce<0, cf::Welford, add4>;
using Phase0 =
    cf::Phase<cf::Tiles<residual>, cf::Columns<>, cf::Lets<add4>, cf::Effects<cf::Keep<add4>, stats>>;

// link 1, phase 1
using rstd = cf::Column<0, cf::Rsqrt<cf::Add<cf::Stat<0, cf::variance>, eps>>>;
using mean_scaled = cf::Column<1, cf::Mul<cf::Stat<0, cf::mean>, rstd>>;
using mul15 = cf::Mul<cf::Sub<cf::Mul<cf::Kept, rstd>, mean_scaled>, norm_weight_vector>;
using y = cf::Add<mul15, norm_bias_vector>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<rstd, mean_scaled>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel = cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/128>, Middle, cf::Gemm<cf::bf16, /*N=*/128>,
                                    cf::ChainSchedule</*Warpgroups=*/3, /*Block=*/64, /*Buffers=*/1>,
                                    cf::RowsInShared</*K=*/128, residual>, cf::Resident, cf::TileSlots<4>,
                                    cf::Operands<b0, b1, residual, norm_weight, norm_bias>, Vectors,
                                    cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_128x128x128_w3_57a101ee, program::Kernel)
