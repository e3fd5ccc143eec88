// cf_sm90_chain_bf16_256x1024x256_w2_c687404d
//   middle = gelu_tanh(a @ w0.T + b0)
//   y = middle @ w1.T + b1
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using b0 = cf::RowVector<0, cf::bf16>;
using b1 = cf::RowVector<1, cf::bf16>;

using half = cf::Imm<0x3f000000>;  // 0.5

// a column, computed once
using part_of_b0 = cf::Vector<cf::Mul<b0, half>>;
using b1_vector = cf::Vector<b1>;
using Vectors = cf::Vectors<part_of_b0, b1_vector>;

// link 0: over (M, H), and on as A of link 1
using middle = cf::GeluTanhOfDouble<cf::Add<cf::Mul<cf::Acc, half>, part_of_b0>>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<middle>>>;

// link 1, phase 0
using y = cf::Add<cf::Acc, b1_vector>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel = cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/1024>, Middle, cf::Gemm<cf::bf16, /*N=*/256>,
                                    cf::ChainSchedule</*Warpgroups=*/2, /*Block=*/64, /*Buffers=*/1>,
                                    cf::RowsInShared</*K=*/256>, cf::Streamed</*Ring=*/4>, cf::TileSlots<0>,
                                    cf::Operands<b0, b1>, Vectors, cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_256x1024x256_w2_c687404d, program::Kernel)
