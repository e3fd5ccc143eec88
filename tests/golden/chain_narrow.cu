// cf_sm90_chain_bf16_64x256x64_w3_c629f028
//   middle = relu(a @ w0.T + b0)
//   y = middle @ w1.T
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using b0 = cf::RowVector<0, cf::fp32>;

// a column, computed once
using b0_vector = cf::Vector<b0>;
using Vectors = cf::Vectors<b0_vector>;

// link 0: over (M, H), and on as A of link 1
using middle = cf::Relu<cf::Add<cf::Acc, b0_vector>>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<middle>>>;

// link 1, phase 0
using Phase0 =
    cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::bf16, cf::Acc>>>;

using Kernel = cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/256>, Middle, cf::Gemm<cf::bf16, /*N=*/64>,
                                    cf::ChainSchedule</*Warpgroups=*/3, /*Block=*/64, /*Buffers=*/2>,
                                    cf::RowsInShared</*K=*/64>, cf::Resident, cf::TileSlots<0>,
                                    cf::Operands<b0>, Vectors, cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_64x256x64_w3_c629f028, program::Kernel)
