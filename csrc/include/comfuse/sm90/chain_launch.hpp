// The host's side of a chain: tensor maps of X and of all weights.
#pragma once

#include "comfuse/sm90/chain_kernel.hpp"
#include "comfuse/sm90/launch.hpp"

namespace comfuse::sm90 {

template <class... Parts>
struct FactorMaps<FusedChain<Parts...>> {
  using Kernel = FusedChain<Parts...>;
  using Factors = typename Kernel::Factors;
  using T = typename Factors::T;

  static bool accepts(CfArgs const& args) { return args.k == Factors::K; }
  static bool encode(typename Kernel::Params& params, CfArgs const& args) {
    auto& maps = params.factors;
    if constexpr (Kernel::kSharesRows)
      params.rows_are_operand =
          are_same(args.a, args.operands[ElementOf<typename Kernel::RowsOperand>::index]);
    constexpr bool kBatched = Kernel::kBatched;
    bool ok = encode_factor<T, false, kBatched>(&maps.rows, &maps.rows_batches, args.a, args.batches, args.m,
                                                args.k, Kernel::TileM);
    for (int p = 0; p < Factors::kProducts; ++p)
      ok = ok && encode_factor<T, false, kBatched>(&maps.first[p], &maps.first_batches[p], args.b[p],
                                                   args.batches, Factors::H, args.k, Factors::kBlock);
    ok = ok && encode_later(maps.later, args, typename Factors::Later{});
    if constexpr (Kernel::kFolds) params.second = args.b[Factors::kProducts];
    return ok;
  }

 private:
  static bool are_same(CfTensor const& a, CfTensor const& b) {
    return a.data == b.data && a.stride == b.stride;
  }
  template <class... F>
  static bool encode_later(LaterMaps* maps, CfArgs const& args, List<F...>) {
    CfTensor const* factor = args.b + Factors::kProducts;
    return (true && ... && encode_factor_of(F{}, *maps++, *factor++, args.batches));
  }
  template <class Factor>
  static bool encode_factor_of(Factor, LaterMaps& maps, CfTensor const& b, int64_t batches) {
    if constexpr (!Factor::kPermuted)
      return encode_factor<T, Factor::kMNMajor, Kernel::kBatched>(&maps.all, &maps.batches, b, batches,
                                                                  Factor::N, Factor::K, Factor::TileN);
    constexpr int kGroups = Factor::N / 32, kRest = Factor::kPartialColumns;
    bool ok = true;
    if (kGroups > 0)
      ok = ok && encode_permuted<T>(&maps.all, b, 0, 4, kGroups, Factor::K, Factor::kGroupsOfBox);
    if (kRest > 0) ok = ok && encode_permuted<T>(&maps.partial, b, kGroups * 32, kRest / 8, 1, Factor::K, 1);
    if (kGroups == 0) maps.all = maps.partial;  // read beyond its one group only, for zeros
    return ok;
  }
};

}  // namespace comfuse::sm90
