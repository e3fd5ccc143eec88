// cf_sm90_chain_fp16_128x8192x128_w3_04bf1b6c
//   seen = where(row >= column, a @ w0.mT * scale, -inf)
//   p = exp(seen - max(seen)) * reciprocal(sumexp(seen))
//   y = p @ w1.mT
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using scale = cf::Scalar<0>;
using p_mul17 = cf::ColumnVector<0, cf::fp32>;

using c6 = cf::Imm<0xff800000>;  // -inf

// a column, computed once
using Vectors = cf::Vectors<>;

// link 0: over (M, H)
using seen = cf::Where<cf::Ge<cf::RowIndex, cf::ColumnIndex>, cf::Mul<cf::Acc, scale>, c6>;
using reduce_seen_exp_max = cf::RowReduce<0, cf::Max, seen>;
using Values =
    cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<seen>, cf::Effects<cf::Keep<seen>, reduce_seen_exp_max>>;

// link 0: over (M, H), and on as A of link 1
using seen_exp_max = cf::Column<0, cf::Stat<0, cf::value>>;
using seen_exp = cf::Exp<cf::Sub<cf::Kept, seen_exp_max>>;
using total_sum = cf::RowReduce<1, cf::Sum, seen_exp>;
using Exponentials = cf::Phase<cf::Tiles<>, cf::Columns<seen_exp_max>, cf::Lets<seen_exp>,
                               cf::Effects<total_sum, cf::Pass<seen_exp>>>;
using Middle = cf::Online<Values, Exponentials>;

// link 0: behind its last columns, and on to link 1
using e_scale = cf::Exp<cf::Sub<cf::Stat<0, cf::value>, cf::Stat<0, cf::value>>>;
using p_mul17_2 = cf::Column<0, cf::Mul<e_scale, cf::Reciprocal<cf::Stat<1, cf::value>>>>;
using Handed = cf::Handed<cf::Columns<p_mul17_2>, cf::Effects<cf::HandRow<p_mul17, p_mul17_2>>>;

// link 1, phase 0
using p_mul17_column = cf::Column<0, p_mul17>;
using y = cf::Mul<cf::Acc, p_mul17_column>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<p_mul17_column>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::fp16, y>>>;

using Kernel =
    cf::sm90::FusedChain<cf::Gemm<cf::fp16, /*N=*/8192, 1, cf::KMajor, cf::KMajor, /*Batched=*/true>, Middle,
                         cf::Gemm<cf::fp16, /*N=*/128, 1, cf::KMajor, cf::MNMajor, /*Batched=*/true>,
                         cf::ChainSchedule</*Warpgroups=*/3, /*Block=*/64, /*Buffers=*/1>,
                         cf::RowsInShared</*K=*/128>, cf::Streamed</*Ring=*/8>, cf::TileSlots<0>,
                         cf::Operands<>, Vectors, cf::Program<Phase0>, Handed>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_fp16_128x8192x128_w3_04bf1b6c, program::Kernel)
