// cf_sm90_chain_bf16_128x128x128_w3_0fd75c7d
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

// link 0: over (M, H), and on as A of link 1
using middle = cf::Silu<cf::Add<cf::Acc, b0>>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<middle>>>;

// link 1, phase 0
using add4 = cf::Add<cf::Add<cf::Acc, b1>, residual>;
using stats = cf::RowReduce<0, cf::Welford, add4>;
using Phase0 =
    cf::Phase<cf::Tiles<residual>, cf::Columns<>, cf::Lets<add4>, cf::Effects<cf::Keep<add4>, stats>>;

// link 1, phase 1
using rstd = cf::Column<0, cf::Rsqrt<cf::Add<cf::Stat<0, cf::variance>, eps>>>;
using mean_scaled = cf::Column<1, cf::Mul<cf::Stat<0, cf::mean>, rstd>>;
using y = cf::Add<cf::Mul<cf::Sub<cf::Mul<cf::Kept, rstd>, mean_scaled>, norm_weight>, norm_bias>;
using Phase1 = cf::Phase<cf::Tiles<>, cf::Columns<rstd, mean_scaled>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel =
    cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/128>, Middle, cf::Gemm<cf::bf16, /*N=*/128>,
                         cf::ChainSchedule</*Warpgroups=*/3, /*Block=*/64, /*Buffers=*/1>,
                         cf::RowsInShared</*K=*/128>, cf::Resident, cf::TileSlots<4>,
                         cf::Operands<b0, b1, residual, norm_weight, norm_bias>, cf::Program<Phase0, Phase1>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_128x128x128_w3_0fd75c7d, program::Kernel)
