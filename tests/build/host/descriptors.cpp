// Compares shared_layout.hpp with CuTe: where each element of a factor's K block lies, and the descriptors;
// and what the device headers say of wgmma's fragments.
//
// Returns 0 if they agree, otherwise the differences are on stderr.  (CuTe says on stdout that a host has no
// shared memory.)
#include <cstdio>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "comfuse/sm90/shared_layout.hpp"

using namespace cute;
namespace cf = comfuse::sm90;
using Element = cutlass::bfloat16_t;

int failures = 0;

void expect(int got, int wanted, char const* what, int row, int k) {
  if (got == wanted) return;
  if (++failures < 20)
    std::fprintf(stderr, "%s at (%d, %d): CuTe says %d, we say %d\n", what, row, k, got, wanted);
}

// Where TMA puts (row, k): in boxes of 64 rows, lines of 128 bytes whose 16-byte units are swizzled.
template <class Major>
int byte_of(int row, int k) {
  bool const k_major = std::is_same<Major, comfuse::KMajor>::value;
  int const line = k_major ? row % 64 : k, byte = 2 * (k_major ? k : row % 64);
  return row / 64 * cf::kBlockBytes + line * cf::kLineBytes + (byte ^ line % 8 * 16);
}

// wgmmas of `Rows` rows by 16 on a K block of the factor.
template <class Major, SM90::GMMA::Major kMajor, class Atom, class Order, int Rows>
void compare(Atom atom, Order order, Int<Rows>) {
  auto const layout = tile_to_shape(atom, Shape<Int<Rows>, _64>{}, order);
  auto const plain = as_position_independent_swizzle_layout(layout);
  for (int row = 0; row < Rows; ++row)
    for (int k = 0; k < 64; ++k) expect(plain(row, k) * 2, byte_of<Major>(row, k), "byte", row, k);

  alignas(1024) static Element memory[Rows * 64];
  auto const tensor = make_tensor(make_smem_ptr(memory), layout);
  for (int step = 0; step < 4; ++step) {
    auto const operand = local_tile(tensor, Shape<Int<Rows>, _16>{}, make_coord(0, step));
    auto const theirs = SM90::GMMA::make_gmma_desc<kMajor>(operand).bitfield;
    GmmaDescriptor const descriptor(cf::wgmma_descriptor<Major>(step * cf::SharedLayout<Major>::kStep));
    auto const ours = descriptor.bitfield;
    int const start = int(raw_pointer_cast(operand.data()) - memory) * 2;
    expect(start, ours.start_address_ << 4, "start of a descriptor", 0, step);
    expect(int(theirs.layout_type_), int(ours.layout_type_), "layout type", 0, step);
    expect(int(theirs.base_offset_), int(ours.base_offset_), "base offset", 0, step);
    expect(theirs.stride_byte_offset_, ours.stride_byte_offset_, "stride", 0, step);
    // Between blocks of 64 rows: CuTe has none to name where there is one block.
    if (kMajor == SM90::GMMA::Major::K || Rows > 64)
      expect(theirs.leading_byte_offset_, ours.leading_byte_offset_, "leading offset", 0, step);
  }
}

template <int Rows>
void compare(Int<Rows> rows) {
  compare<comfuse::KMajor, SM90::GMMA::Major::K>(SM90::GMMA::Layout_K_SW128_Atom<Element>{}, Step<_1, _2>{},
                                                 rows);
  compare<comfuse::MNMajor, SM90::GMMA::Major::MN>(SM90::GMMA::Layout_MN_SW128_Atom<Element>{},
                                                   Step<_2, _1>{}, rows);
}

// Where a thread's accumulators lie (chain_middle.hpp), and its A in registers: a chain's second GEMM takes
// accumulators 8 s + 2 w + e as element e of word w of its k step s (chain_mainloop.hpp).
template <class Op, int N>
void compare_fragments() {
  using Traits = MMA_Traits<Op>;
  auto const accumulators = typename Traits::CLayout{};
  auto const a = typename Traits::ALayout{};
  for (int thread = 0; thread < 128; ++thread) {
    int const row = thread / 32 * 16 + thread % 32 / 4, q = thread % 4;
    for (int n = 0; n < N / 2; ++n) {
      int const at = row + n / 2 % 2 * 8, column = n / 4 * 8 + 2 * q + n % 2;
      expect(at + 64 * column, accumulators(thread, n), "accumulator", thread, n);
      int const step = n / 8, of_step = a(thread, n % 8);
      expect(of_step + 64 * 16 * step, accumulators(thread, n), "A in registers", thread, n);
    }
  }
}

int main() {
  using SM90::GMMA::Major;
  compare_fragments<SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<Major::K, Major::K>, 64>();
  compare_fragments<SM90::GMMA::MMA_64x192x16_F32F16F16_RS<Major::K, Major::K>, 192>();
  compare_fragments<SM90::GMMA::MMA_64x256x16_F32BF16BF16_RS<Major::K, Major::K>, 256>();
  compare(_64{});
  compare(_128{});
  compare(_256{});
  return failures == 0 ? 0 : 1;
}
