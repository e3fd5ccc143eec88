// cf_sm90_chain_fp16_256x512x256_w2_8816ef83
//   middle = silu(a @ w0.T) * (a @ w1.T)
//   y = middle @ w2.T
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

// link 0: over (M, H), and on as A of link 1
using middle = cf::Mul<cf::Silu<cf::Product<0>>, cf::Product<1>>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<middle>>>;

// link 1, phase 0
using Phase0 =
    cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::fp16, cf::Acc>>>;

using Kernel =
    cf::sm90::FusedChain<cf::Gemm<cf::fp16, /*N=*/512, /*Products=*/2>, Middle, cf::Gemm<cf::fp16, /*N=*/256>,
                         cf::ChainSchedule</*Warpgroups=*/2, /*Block=*/64, /*Buffers=*/1>,
                         cf::RowsInShared</*K=*/256>, cf::Streamed</*Ring=*/2>, cf::TileSlots<0>,
                         cf::Operands<>, cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_fp16_256x512x256_w2_8816ef83, program::Kernel)
