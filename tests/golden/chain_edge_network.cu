// cf_sm90_chain_bf16_128x128x128x128_w3_153dc5f0
//   middle0 = relu(a @ w0.T + b0)
//   middle1 = relu(middle0 @ w1.T + b1)
//   add2 = middle1 @ w2.T + b2
//   rstd = rsqrt(var(add2) + eps)
//   y = (add2 * rstd - mean(add2) * rstd) * norm_weight + norm_bias + residual
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using b0 = cf::RowVector<0, cf::bf16>;
using b1 = cf::RowVector<1, cf::bf16>;
using b2 = cf::RowVector<2, cf::bf16>;
using residual = cf::Tile<3, cf::bf16>;
using norm_weight = cf::RowVector<4, cf::bf16>;
using norm_bias = cf::RowVector<5, cf::bf16>;
using eps = cf::Scalar<0>;

// a column, computed once
using b0_vector = cf::Vector<b0>;
using b1_vector = cf::Vector<b1>;
using b2_vector = cf::Vector<b2>;
using norm_weight_vector = cf::Vector<norm_weight>;
using norm_bias_vector = cf::Vector<norm_bias>;
using Vectors = cf::Vectors<b0_vector, b1_vector, b2_vector, norm_weight_vector, norm_bias_vector>;

// link 0: over (M, H), and on as A of link 1
using middle0 = cf::Relu<cf::Add<cf::Acc, b0_vector>>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<middle0>>>;

// link 1: over (M, H1), and on as A of link 2
using middle1 = cf::Relu<cf::Add<cf::Acc, b1_vector>>;
using Middle1 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<middle1>>>;

// link 2, phase 0
using add2 = cf::Add<cf::Acc, b2_vector>;
using stats = cf::RowReduce<0, cf::Welford, add2>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<add2>, cf::Effects<cf::Keep<add2>, stats>>;

// link 2, phase 1
using rstd = cf::Column<0, cf::Rsqrt<cf::Add<cf::Stat<0, cf::variance>, eps>>>;
using mean_scaled = cf::Column<1, cf::Mul<cf::Stat<0, cf::mean>, rstd>>;
using mul14 = cf::Mul<cf::Sub<cf::Mul<cf::Kept, rstd>, mean_scaled>, norm_weight_vector>;
using y = cf::Add<mul14, norm_bias_vector>;
using y_2 = cf::Add<y, residual>;
using Phase1 = cf::Phase<cf::Tiles<residual>, cf::Columns<rstd, mean_scaled>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, y_2>>>;

using Further = cf::Further<cf::Link<Middle1, cf::Gemm<cf::bf16, /*N=*/128>>>;
using Kernel = cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/128>, Middle, cf::Gemm<cf::bf16, /*N=*/128>,
                                    cf::ChainSchedule</*Warpgroups=*/3, /*Block=*/64, /*Buffers=*/1>,
                                    cf::RowsInShared</*K=*/128, residual>, cf::Resident, cf::TileSlots<4>,
                                    cf::Operands<b0, b1, b2, residual, norm_weight, norm_bias>, Vectors,
                                    cf::Program<Phase0, Phase1>, cf::NothingHanded, Further>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_128x128x128x128_w3_153dc5f0, program::Kernel)
