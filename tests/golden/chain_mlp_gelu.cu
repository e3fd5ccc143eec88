// cf_sm90_chain_bf16_128x512x128_w2b64_00000000
//   h = gelu(a @ w0.T + bias0)
//   y = h @ w1.T + bias1
#include <comfuse/sm90/fused_chain.hpp>

namespace cf = comfuse;
namespace program {

using bias0 = cf::RowVector<0, cf::bf16>;
using bias1 = cf::RowVector<1, cf::bf16>;

// link 0: over (M, H), and on as A of link 1
using h = cf::Gelu<cf::Add<cf::Acc, bias0>>;
using Middle = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::Pass<h>>>;

// link 1, phase 0
using y = cf::Add<cf::Acc, bias1>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<cf::TileStore<0, cf::bf16, y>>>;

using Kernel =
    cf::sm90::FusedChain<cf::Gemm<cf::bf16, /*N=*/512>, Middle, cf::Gemm<cf::bf16, /*N=*/128>,
                         cf::ChainSchedule</*Warpgroups=*/2, /*Block=*/64, /*Buffers=*/2>,
                         cf::RowsInRegisters</*K=*/128>, cf::ResidentFirst</*Ring=*/2>, cf::TileSlots<0>,
                         cf::Operands<bias0, bias1>, cf::Program<Phase0>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_chain_bf16_128x512x128_w2b64_00000000, program::Kernel)
