// cf_sm90_chain_bf16_64x512x64_w3_1b6db338
//   biased = a @ w0.mT * scale + bias
//   p = exp(biased - max(biased)) * reciprocal(sumexp(biased))
//   y = p @ w1.mT
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using scale = cf::Scalar<0>;
using bias = cf::Tile<0, cf::bf16>;
using p_mul14 = cf::ColumnVector<1, cf::fp32>;

// a column, computed once
using Vectors = cf::Vectors<>;

// link 0: over (M, H)
using biased = cf::Add<cf::Mul<cf::Acc, scale>, bias>;
using reduce_biased_exp_max = cf::RowReduce<0, cf::Max, biased>;
using Values = cf::Phase<cf::Tiles<bias>, cf::Columns<>, cf::Lets<biased>,
                         cf::Effects<cf::Keep<biased>, reduce_biased_exp_max>>;

// link 0: over (M, H), and on as A of link 1
using biased_exp_max = cf::Column<0, cf::Stat<0, cf::value>>;
using biased_exp = cf::Exp<cf::Sub<cf::Kept, biased_exp_max>>;
using total_sum = cf::RowReduce<1, cf::Sum, biased_exp>;
using Exponentials = cf::Phase<cf::Tiles<>, cf::Columns<biased_exp_max>, cf::Lets<biased_exp>,
                               cf::Effects<total_sum, cf::Pass<biased_exp>>>;
using Middle = cf::Online<Values, Exponentials>;

// link 0: behind its last columns, and on to link 1
using e_scale = cf::Exp<cf::Sub<cf::Stat<0, cf::value>, cf::Stat<0, cf::value>>>;
using p_mul14_2 = cf::Column<0, cf::Mul<e_scale, cf::Reciprocal<cf::Stat<1, cf::value>>>>;
using Handed = cf::Handed<cf::Columns<p_mul14_2>, cf::Effects<cf::HandRow<p_mul14, p_mul14_2>>>;

// link 1, phase 0
using p_mul14_column = cf::Column<0, p_mul14>;
using y = cf::Mul<cf::Acc, p_mul14_column>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<p_mul14_column>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel =
    cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/512, 1, cf::KMajor, cf::KMajor, /*Batched=*/true>, Middle,
                         cf::Gemm<cf::bf16, /*N=*/64, 1, cf::KMajor, cf::MNMajor, /*Batched=*/true>,
                         cf::ChainSchedule</*Warpgroups=*/3, /*Block=*/64, /*Buffers=*/1>,
                         cf::RowsInShared</*K=*/64>, cf::Streamed</*Ring=*/8>, cf::TileSlots<4>,
                         cf::Operands<bias>, Vectors, cf::Program<Phase0>, Handed>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_64x512x64_w3_1b6db338, program::Kernel)
