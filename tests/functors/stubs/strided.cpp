// Runs the tiles of a kernel whose program copies a strided tile, or writes where each element is, thread
// by thread.
#include "comfuse/sm90/batches.hpp"
#include "comfuse/sm90/store.hpp"

namespace cf = comfuse;
using namespace comfuse::sm90;

template <int Columns, int Fragments, class T>
struct Kernel {
  static constexpr int N = Columns, TileM = 128, TileN = 64, kFragments = Fragments, kProducts = 1;
  static constexpr int kConsumerWarps = 8;
  static constexpr bool kClippedN = N % TileN != 0, kPairs = false;
  using Program = cf::List<>;
  using OperandList = cf::List<cf::StridedTile<0, T>>;
  struct Params {
    int m;
    CfTensor operands[1], outputs[1];
    BatchSteps<int64_t> operand_batches[1];
    float scalars[1];
  };
  struct Item {
    int block, tile_n, batch;
    int row() const { return block * TileM; }
    int column() const { return tile_n * TileN; }
  };
  static int64_t batch_of_operand(Params const& params, int operand, Item const& item) {
    return params.operand_batches[operand].of(item.batch);
  }
  static int64_t batch_of_output(Params const& params, int output, Item const& item) {
    return item.batch * params.outputs[output].batch_stride;
  }
};

template <class K, class T, class X>
void run(typename K::Params const& params, int batches) {
  using Store = cf::StridedStore<0, T, X>;
  using Phase = cf::Phase<cf::Tiles<>, cf::Columns<>, cf::Lets<>, cf::Effects<Store>>;
  constexpr int kRows = 2 * K::kFragments;
  for (int batch = 0; batch < batches; ++batch)
    for (int block = 0; block * K::TileM < params.m; ++block)
      for (int tile = 0; tile * K::TileN < K::N; ++tile)
        for (int warp = 0; warp < 8 / K::kFragments; ++warp)
          for (lane = 0; lane < 32; ++lane) {
            typename K::Item const item{block, tile, batch};
            int const row = warp / 4 * 64 + warp % 4 * 16;
            float columns[1][kRows];
            FragmentSource<K, Phase> source(params, item, nullptr, row, columns);
            for (source.column = 0; source.column < K::TileN; source.column += kFragmentColumns)
              for (source.i = 0; source.i < K::kFragments; ++source.i)
                store(source, evaluate<X>(source), Store{});
          }
}

extern "C" void watch(void const* operand, void const* readable, long operand_size, void const* output,
                      void const* writable, long output_size) {
  operand_bytes = {static_cast<char const*>(operand), static_cast<char const*>(readable), operand_size};
  output_bytes = {static_cast<char const*>(output), static_cast<char const*>(writable), output_size};
  faults = block_accesses = element_accesses = 0;
}
extern "C" void counts(long* result) {
  result[0] = faults, result[1] = block_accesses, result[2] = element_accesses;
}

using Thousand = cf::Imm<0x447a0000>;
using Place = cf::Add<cf::Mul<cf::RowIndex, Thousand>, cf::ColumnIndex>;
#define RUN(NAME, T, N, FRAGMENTS)                                                                      \
  extern "C" void copy_##NAME##_##N(int m, int batches, CfTensor const* operand, CfTensor const* out) { \
    using K = Kernel<N, FRAGMENTS, cf::T>;                                                              \
    run<K, cf::T, cf::StridedTile<0, cf::T>>({m, {*operand}, {*out}, {batch_steps(*operand, batches)}, {}}, batches);                     \
  }                                                                                                     \
  extern "C" void place_##NAME##_##N(int m, int batches, CfTensor const* out) {                         \
    using K = Kernel<N, FRAGMENTS, cf::T>;                                                              \
    run<K, cf::fp32, Place>({m, {*out}, {*out}, {}, {}}, batches);                                          \
  }
#define RUN_ALL(NAME, T) \
  RUN(NAME, T, 64, 1)    \
  RUN(NAME, T, 104, 2)   \
  RUN(NAME, T, 77, 1)
RUN_ALL(1, int8)
RUN_ALL(2, bf16)
RUN_ALL(4, fp32)
RUN_ALL(8, int64)
