// cf_sm90_chain_fp16_128x256x128_w2_ed470d02
//   middle = silu(a @ w0.T) * (a @ w1.T)
//   y = middle @ w2.T
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

// a column, computed once
using Vectors = cf::Vectors<>;

// link 0: over (M, H), and on as A of link 1
using middle = cf::Mul<cf::Silu<cf::Product<0>>, cf::Product<1>>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<middle>>>;

// link 1, phase 0
using Phase0 =
    cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::fp16, cf::Acc>>>;

using Kernel =
    cf::sm90::FusedChain<cf::Gemm<cf::fp16, /*N=*/256, /*Products=*/2>, Middle, cf::Gemm<cf::fp16, /*N=*/128>,
                         cf::ChainSchedule</*Warpgroups=*/2, /*Block=*/64, /*Buffers=*/1>,
                         cf::RowsInShared</*K=*/128>, cf::Resident, cf::TileSlots<0>, cf::Operands<>, Vectors,
                         cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_fp16_128x256x128_w2_ed470d02, program::Kernel)
