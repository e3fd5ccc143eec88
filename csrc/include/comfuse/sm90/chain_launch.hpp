// The host's side of a chain: tensor maps of X and of both sets of weights.
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
    bool ok = encode_factor<T, false, false>(&maps.rows, args.a, 1, args.m, args.k, Kernel::TileM);
    for (int p = 0; p < Factors::kProducts; ++p)
      ok = ok &&
           encode_factor<T, false, false>(&maps.first[p], args.b[p], 1, Factors::H, args.k, Factors::kBlock);
    constexpr int kGroups = Factors::N / 32, kRest = Factors::kPartialColumns;
    CfTensor const& second = args.b[Factors::kProducts];
    if (kGroups > 0)
      ok = ok && encode_permuted<T>(&maps.second, second, 0, 4, kGroups, Factors::H, Factors::kGroupsOfBox);
    if (kRest > 0)
      ok = ok && encode_permuted<T>(&maps.second_partial, second, kGroups * 32, kRest / 8, 1, Factors::H, 1);
    if constexpr (Kernel::kFolds) params.second = second;
    if (kGroups == 0) maps.second = maps.second_partial;  // read beyond its one group only, for zeros
    return ok;
  }
};

}  // namespace comfuse::sm90
