// cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong_b31f79f0
//   loss = where(target != ignore_index, logsumexp(a @ b.T) - sum(where(column == target, a @ b.T, 0)), 0)
//   lse = logsumexp(a @ b.T)
#include <comfuse/sm90/fused_gemm.hpp>

namespace cf = comfuse;
namespace program {

using target = cf::ColumnVector<0, cf::int64>;
using ignore_index = cf::Scalar<0>;

using zero = cf::Imm<0x00000000>;  // 0.0

// phase 0
using target_column = cf::Column<0, target>;
using softmax = cf::RowReduce<0, cf::Softmax, cf::Acc>;
using picked = cf::RowReduce<1, cf::Sum, cf::Where<cf::Eq<cf::ColumnIndex, target_column>, cf::Acc, zero>>;
using Phase0 = cf::Phase<cf::Tiles<>, cf::Columns<target_column>, cf::Lets<>, cf::Effects<softmax, picked>>;

// by the last tile of each row block
using lse = cf::Column<0, cf::Stat<0, cf::lse>>;
using sub11 = cf::Sub<lse, cf::Stat<1, cf::value>>;
using loss = cf::Column<1, cf::Where<cf::Ne<target, ignore_index>, sub11, zero>>;
using RowTail =
    cf::RowTail<cf::Columns<lse, loss>,
                cf::Effects<cf::ColumnStore<0, cf::fp32, loss>, cf::ColumnStore<1, cf::fp32, lse>>>;

using Kernel =
    cf::sm90::FusedGemm<cf::Gemm<cf::bf16, /*N=*/32000>, cf::Pingpong<128, 128, 64>, cf::Cluster<1, 2>,
                        cf::Stages<7>, cf::TileSlots<0>, cf::Operands<target>, cf::Program<Phase0, RowTail>>;
}  // namespace program
COMFUSE_EXPORT(cf_sm90_gemm_bf16_fp32_128x128x64_c1x2_pingpong_b31f79f0, program::Kernel)
