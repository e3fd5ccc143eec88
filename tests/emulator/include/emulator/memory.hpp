// mbarriers, tensor maps and TMA.
#pragma once

#include "emulator/machine.hpp"

namespace emulator {

inline uint32_t shared_address(void const* p) {
  ptrdiff_t const offset = static_cast<uint8_t const*>(p) - machine.cta->memory;
  if (offset < 0 || offset >= machine.cta->shared_bytes)
    fail("byte %ld is not in shared memory", long(offset));
  return uint32_t(offset) + kSharedBase;
}
inline uint8_t* shared_byte(uint32_t address) {
  if (address < kSharedBase || address >= kSharedBase + uint32_t(machine.cta->shared_bytes))
    fail("address %u is not in shared memory", address);
  return machine.cta->memory + address - kSharedBase;
}
// The swizzle of 128 bytes, 64 or none, which TMA writes: of an address, not of an offset.
inline uint32_t swizzled(uint32_t address, uint32_t bytes) {
  return bytes == 0 ? address : address ^ (address >> 7 & (bytes / 16 - 1)) << 4;
}

// ---- mbarriers
inline Mbarrier& mbarrier(uint64_t const* word) {
  auto const found = machine.cta->mbarriers.find(word);
  if (found == machine.cta->mbarriers.end()) fail("an mbarrier that was not initialised");
  if (*word != kMbarrierWord) fail("something wrote over an mbarrier");
  return found->second;
}
inline void complete_if_done(Mbarrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  b.pending = b.count;
  ++b.phase;
  wake(b.waiting);
}

// ---- the cluster
inline Cta* peer(uint32_t rank) {
  auto const& ctas = self().cta->cluster->ctas;
  if (rank >= ctas.size()) fail("no CTA of rank %u in its cluster", rank);
  return ctas[rank];
}
// At the same place in another CTA's shared memory.
inline uint64_t* word_of(Cta const& cta, uint64_t const* own) {
  return reinterpret_cast<uint64_t*>(cta.memory +
                                     (reinterpret_cast<uint8_t const*>(own) - self().cta->memory));
}

struct Barrier {
  static void init(uint64_t const* word, int count) {
    shared_address(word);
    if (uintptr_t(word) % 8 != 0) fail("an mbarrier is not aligned");
    if (!machine.cta->mbarriers.emplace(word, Mbarrier{count, count}).second)
      fail("an mbarrier is initialised twice");
    *const_cast<uint64_t*>(word) = kMbarrierWord;
  }
  static bool try_wait(uint64_t const* word, uint32_t parity) {
    while ((mbarrier(word).phase & 1) == parity) {
      mbarrier(word).waiting.push_back(&self());
      block("an mbarrier");
    }
    return true;
  }
  static void arrive(uint64_t const* word) { arrive_and_expect_tx(word, 0); }
  // At the same place in another CTA of the cluster, where it comes later.
  static void arrive(uint64_t const* word, uint32_t rank) {
    Cta* const to = peer(rank);
    uint64_t const* const theirs = word_of(*to, word);
    machine.transfers.push_back({to, [=] { count(theirs, 0); }});
    give_way();
  }
  static void arrive_and_expect_tx(uint64_t const* word, uint32_t bytes) {
    count(word, bytes);
    give_way();
  }

 private:
  static void count(uint64_t const* word, uint32_t bytes) {
    Mbarrier& b = mbarrier(word);
    if (b.pending == 0) fail("one arrival too many at an mbarrier of %d", b.count);
    if (bytes >= 1 << 20) fail("an mbarrier cannot count %u bytes", bytes);
    b.bytes += bytes;
    --b.pending;
    complete_if_done(b);
  }
};

// ---- tensor maps: what cuTensorMapEncodeTiled is told, as it stands in the 128 bytes
struct TensorMap {
  uint64_t base, sizes[5], strides[4];
  uint32_t box[5], rank, element, swizzle;
};
static_assert(sizeof(TensorMap) <= 128);

inline bool is_legal(TensorMap const& t) {
  bool legal = t.base % 16 == 0 && t.rank >= 1 && t.rank <= 5 && t.box[0] * t.element % 16 == 0 &&
               (t.swizzle == 0 || t.box[0] * t.element <= t.swizzle);
  for (uint32_t i = 0; i < t.rank; ++i)
    legal = legal && t.sizes[i] >= 1 && t.sizes[i] <= 1ull << 32 && t.box[i] >= 1 && t.box[i] <= 256;
  for (uint32_t i = 0; i + 1 < t.rank; ++i)
    legal = legal && t.strides[i] % 16 == 0 && t.strides[i] < 1ull << 40;
  return legal;
}

// ---- reads of shared memory by ldmatrix, which TMA may overtake unless there is a fence of the proxies
// behind them, or what takes what they brought, as it begins when its registers are there: a wgmma, or a
// store to global memory, which the kernel has to see to
inline void note_read(uint32_t address) {
  ++self().cta->readers[address / 16];
  self().read.push_back(address / 16);
}
inline void end_reads() {
  for (uint32_t unit : self().read) --self().cta->readers[unit];
  self().read.clear();
}
inline void proxy_fence() { end_reads(); }

// A box, element by element: what lies outside the tensor is zero, and counts as bytes all the same.
inline void load_box(TensorMap const& t, uint32_t to, int const (&corner)[5]) {
  uint32_t at[5] = {}, address = to;
  for (;;) {
    bool inside = true;
    uint64_t from = t.base;
    for (uint32_t i = 0; i < t.rank; ++i) {
      int64_t const x = int64_t(corner[i]) + at[i];
      inside = inside && x >= 0 && uint64_t(x) < t.sizes[i];
      from += uint64_t(x) * (i == 0 ? t.element : t.strides[i - 1]);
    }
    uint32_t const place = swizzled(address, t.swizzle);
    auto const found = machine.cta->readers.find(place / 16);
    if (found != machine.cta->readers.end() && found->second > 0)
      fail("TMA overtakes a read: no proxy fence");
    uint8_t* const byte = shared_byte(place);
    if (inside)
      memcpy(byte, reinterpret_cast<void const*>(from), t.element);
    else
      memset(byte, 0, t.element);
    address += t.element;
    uint32_t i = 0;
    while (i < t.rank && ++at[i] == t.box[i]) at[i++] = 0;
    if (i == t.rank) return;
  }
}

// To the same place in the CTAs of a mask, each of which counts its bytes.
template <class... Coordinate>
void load_later(void const* map, uint64_t* word, uint32_t ranks, void* to, Coordinate... coordinate) {
  constexpr int kRank = sizeof...(Coordinate);
  TensorMap t;
  memcpy(&t, map, sizeof t);
  if (t.rank != kRank) fail("a load of rank %d from a tensor map of rank %u", kRank, t.rank);
  uint32_t const address = shared_address(to);
  if (address % std::max(128u, 8 * t.swizzle) != 0) fail("TMA writes to %u, which is not aligned", address);
  std::vector<int> const corner{int(coordinate)...};
  for (uint32_t rank = 0; ranks >> rank != 0; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    Cta* const cta = peer(rank);
    uint64_t const* const theirs = word_of(*cta, word);
    machine.transfers.push_back({cta, [=] {
                                   int all[5] = {};
                                   uint32_t bytes = t.element;
                                   for (int i = 0; i < kRank; ++i) all[i] = corner[i], bytes *= t.box[i];
                                   load_box(t, address, all);
                                   Mbarrier& b = mbarrier(theirs);
                                   b.bytes -= bytes;
                                   complete_if_done(b);
                                 }});
  }
}
inline uint32_t own_rank() {
  auto const& ctas = self().cta->cluster->ctas;
  return uint32_t(std::find(ctas.begin(), ctas.end(), self().cta) - ctas.begin());
}

// ---- shared memory of a CTA of the cluster, whose rank stands above an address's other bits
constexpr uint32_t kRankBit = 24;
inline void address_of_peer(uint32_t& address, uint32_t own, uint32_t rank) {
  peer(rank);
  if (own >> kRankBit != 0) fail("address %u is not in shared memory", own);
  address = own | (rank + 1) << kRankBit;
}
inline uint64_t* word_at(uint32_t address) {
  if (address >> kRankBit == 0 || address % 8 != 0) fail("address %u is no word of a cluster's", address);
  uint8_t* const own = shared_byte(address & ((1u << kRankBit) - 1));
  return word_of(*peer((address >> kRankBit) - 1), reinterpret_cast<uint64_t*>(own));
}
// st.async
inline void store_async(uint32_t to, uint64_t word, uint32_t barrier) {
  if (to >> kRankBit != barrier >> kRankBit) fail("st.async to one CTA, and to the barrier of another");
  uint64_t *const place = word_at(to), *const counted = word_at(barrier);
  machine.transfers.push_back({peer((to >> kRankBit) - 1), [=] {
                                 *place = word;
                                 Mbarrier& b = mbarrier(counted);
                                 b.bytes -= 8;
                                 complete_if_done(b);
                               }});
  give_way();
}

}  // namespace emulator
