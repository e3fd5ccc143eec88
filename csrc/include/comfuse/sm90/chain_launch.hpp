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
    constexpr bool kBatched = Kernel::kBatched;
    bool ok =
        encode_factor<T, false, kBatched>(&maps.rows, args.a, args.batches, args.m, args.k, Kernel::TileM);
    for (int p = 0; p < Factors::kProducts; ++p)
      ok = ok && encode_factor<T, false, kBatched>(&maps.first[p], args.b[p], args.batches, Factors::H,
                                                   args.k, Factors::kBlock);
    CfTensor const& second = args.b[Factors::kProducts];
    if constexpr (kBatched) {
      maps.rows_step = step_of(args.a), maps.second_step = step_of(second);
      for (int p = 0; p < Factors::kProducts; ++p) maps.first_step[p] = step_of(args.b[p]);
    }
    if constexpr (Kernel::kFolds) params.second = second;
    if constexpr (!Factors::kPermutedSecond)
      return ok && encode_factor<T, Factors::kMNMajorSecond, kBatched>(
                       &maps.second, second, args.batches, Factors::N, Factors::H, Factors::TileN);
    constexpr int kGroups = Factors::N / 32, kRest = Factors::kPartialColumns;
    if (kGroups > 0)
      ok = ok && encode_permuted<T>(&maps.second, second, 0, 4, kGroups, Factors::H, Factors::kGroupsOfBox);
    if (kRest > 0)
      ok = ok && encode_permuted<T>(&maps.second_partial, second, kGroups * 32, kRest / 8, 1, Factors::H, 1);
    if (kGroups == 0) maps.second = maps.second_partial;  // read beyond its one group only, for zeros
    return ok;
  }
};

}  // namespace comfuse::sm90
