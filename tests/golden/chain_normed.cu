// cf_sm90_chain_bf16_128x512x128_w2_d9c8e917
//   x = a @ w0.T + b0
//   rstd = rsqrt(var(x) + eps)
//   p = (x * rstd - mean(x) * rstd) * norm_weight + norm_bias
//   y = p @ w1.T + bias
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using b0 = cf::RowVector<0, cf::bf16>;
using norm_weight = cf::RowVector<1, cf::bf16>;
using norm_bias = cf::RowVector<2, cf::bf16>;
using eps = cf::Scalar<0>;
using bias = cf::RowVector<3, cf::bf16>;
using p_rstd = cf::ColumnVector<4, cf::fp32>;
using p_mean_scaled = cf::ColumnVector<5, cf::fp32>;
using p_mul15 = cf::RowVector<6, cf::fp32>;
using p_norm_bias = cf::RowVector<7, cf::fp32>;

using c = cf::Imm<0xbf800000>;  // -1.0

// a column, computed once
using b0_vector = cf::Vector<b0>;
using norm_weight_vector = cf::Vector<norm_weight>;
using bias_vector = cf::Vector<bias>;
using Vectors = cf::Vectors<b0_vector, norm_weight_vector, bias_vector>;

// link 0: over (M, H), and on as A of link 1
using x = cf::Add<cf::Acc, b0_vector>;
using stats = cf::RowReduce<0, cf::Welford, x>;
using p = cf::Mul<x, norm_weight_vector>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<x>, cf::Effects<stats, cf::Pass<p>>>;

// link 0: behind its last columns, and on to link 1
using p_rstd_2 = cf::Column<0, cf::Rsqrt<cf::Add<cf::Stat<0, cf::variance>, eps>>>;
using p_mean_scaled_2 = cf::Column<1, cf::Mul<cf::Stat<0, cf::mean>, p_rstd_2>>;
using HandedEffects =
    cf::Effects<cf::HandRow<p_rstd, p_rstd_2>, cf::HandRow<p_mean_scaled, p_mean_scaled_2>,
                cf::HandFold<p_mul15, cf::Mul<c, norm_weight>>, cf::HandFold<p_norm_bias, norm_bias>>;
using Handed = cf::Handed<cf::Columns<p_rstd_2, p_mean_scaled_2>, HandedEffects>;

// link 1, phase 0
using p_rstd_column = cf::Column<0, p_rstd>;
using p_mean_scaled_column = cf::Column<1, p_mean_scaled>;
using shifted0 = cf::Add<cf::Mul<cf::Acc, p_rstd_column>, cf::Mul<p_mul15, p_mean_scaled_column>>;
using shifted1 = cf::Add<shifted0, p_norm_bias>;
using y = cf::Add<shifted1, bias_vector>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<p_rstd_column, p_mean_scaled_column>, cf::Lets<>,
                         cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel = cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/512>, Middle, cf::Gemm<cf::bf16, /*N=*/128>,
                                    cf::ChainSchedule</*Warpgroups=*/2, /*Block=*/64, /*Buffers=*/2>,
                                    cf::RowsInShared</*K=*/128>, cf::ResidentFirst</*Ring=*/3>,
                                    cf::TileSlots<0>, cf::Operands<b0, norm_weight, norm_bias, bias>, Vectors,
                                    cf::Program<Phase0>, Handed>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_128x512x128_w2_d9c8e917, program::Kernel)
