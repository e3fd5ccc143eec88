// Evaluation of expressions that vary over less than a tile: one thread computes one value, of a row, of a
// group of columns in a row, of a column, or of all.  What the leaves mean is the source's affair.
#pragma once

#include "comfuse/sm90/extent.hpp"
#include "comfuse/sm90/reductions.hpp"

namespace comfuse::sm90 {

template <class Source, class Leaf>
CF_DEVICE float evaluate_one(Source const& source, Leaf leaf) {
  return source.read(leaf);
}
template <class Source, uint32_t Bits>
CF_DEVICE float evaluate_one(Source const&, Imm<Bits>) {
  return __uint_as_float(Bits);
}
template <class Source, int I>
CF_DEVICE float evaluate_one(Source const& source, Scalar<I>) {
  return source.params.scalars[I];
}
template <class Source>
CF_DEVICE float evaluate_one(Source const& source, RowCount) {
  return float(source.params.m);
}
template <class Source, class Fn, class... X>
CF_DEVICE float evaluate_one(Source const& source, Map<Fn, X...>) {
  return Fn::apply(evaluate_one(source, X{})...);
}

// A column of the matrix that operands lie along, straight from memory.
template <class Kernel>
struct ColumnInMemory {
  typename Kernel::Params const& params;
  int column;

  template <int I, class T>
  CF_DEVICE float read(RowVector<I, T>) const {
    CfTensor const& tensor = params.operands[I];
    return to_float(static_cast<T const*>(tensor.data)[column * tensor.stride]);
  }
  CF_DEVICE float read(ColumnIndex) const { return float(column); }
};

// The row that a thread owns, in a phase or in the RowTail.
template <class Kernel, class PhaseT>
struct RowSource {
  typename Kernel::Params const& params;
  typename Kernel::Scheduler::Item const& item;
  Stats<ReductionsOf<typename Kernel::Program>, Kernel::TileN> const& stats;
  uint8_t const* vectors;  // the tile's part of every vector
  int row;                 // in the tile
  float values[PhaseT::Columns::size + 1];

  template <int R, Field F>
  CF_DEVICE float read(Stat<R, F>) const {
    return state_of<R>(stats).template get<F>(1.f / Kernel::N);
  }
  template <int I, class T>
  CF_DEVICE float read(ColumnVector<I, T>) const {
    return to_float(
        reinterpret_cast<T const*>(vectors + Kernel::template vector_offset<ColumnVector<I, T>>)[row]);
  }
  CF_DEVICE float read(RowIndex) const { return float(item.row() + row); }
  template <int I, class X>
  CF_DEVICE float read(Column<I, X>) const {
    return values[I];
  }

  template <int... I, class... X>
  CF_DEVICE void evaluate(List<Column<I, X>...>) {
    ((values[I] = evaluate_one(*this, X{})), ...);
  }
};

// One group of columns of that row.
template <class Kernel, class PhaseT>
struct GroupSource {
  static constexpr int kGroup = group_columns(ReductionsOf<typename Kernel::Program>{});

  RowSource<Kernel, PhaseT> const& rows;
  typename Kernel::Params const& params;
  int group;  // in the tile
  float values[PhaseT::Groups::size + 1];

  template <class Leaf>
  CF_DEVICE float read(Leaf leaf) const {
    return rows.read(leaf);
  }
  template <int R, Field F>
  CF_DEVICE float read(GroupStat<R, F>) const {
    return group_state_of<R>(rows.stats, group).template get<F>(1.f / kGroup);
  }
  template <int I, class X>
  CF_DEVICE float read(Group<I, X>) const {
    return values[I];
  }

  template <int... I, class... X>
  CF_DEVICE void evaluate(List<Group<I, X>...>) {
    ((values[I] = evaluate_one(*this, X{})), ...);
  }
};

}  // namespace comfuse::sm90
