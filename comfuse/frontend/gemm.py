"""The GEMM among the nodes of a graph: which arguments are A and B, and how they walk along its axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from comfuse.frontend import axes, views
from comfuse.frontend.axes import Axis, Dim, Layout
from comfuse.frontend.errors import TraceError
from comfuse.frontend.forms import Rows
from comfuse.frontend.lowered import Read
from comfuse.frontend.placing import half_of
from comfuse.frontend.views import Picked, at, dtype_of, name_of, refuse, shape_of

aten = torch.ops.aten

# The positions of the two factors among the arguments.
FACTORS = {
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.bmm.default: (0, 1),
    aten.mm.default: (0, 1),
    **{
        overload: (0, 1)
        for packet in (aten.mm, aten.bmm)
        if (overload := getattr(packet, "dtype", None)) is not None
    },
}
WITH_BIAS = (aten.addmm.default, aten.baddbmm.default)
# Products that are none of the above.
OTHERS = {
    aten.addbmm: "a sum of products of a batch",
    aten.addmv: "a matrix-vector product",
    aten.convolution: "a convolution",
    aten.dot: "a product of vectors",
    aten.mv: "a matrix-vector product",
    aten._scaled_mm: "a product of fp8 factors",
}
_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class SideBySide:
    """How the columns of one product are those of two: the halves, or every other one."""

    interleaved: bool


class Products:
    """What is known of the GEMM.

    Attributes:
        a, b: the factors; ``b`` has one for each product.
        n, k: columns of a product, and its inner size.
        count, batch: all rows, and batches.
        dtype: of the factors.
    """

    def __init__(self, positions: dict[torch.fx.Node, int], split: SideBySide | None) -> None:
        self._positions = positions
        self._split = split
        self._nodes: list[torch.fx.Node] = []
        self.a: Read | None = None
        self.b: list[Read] = []
        self.n = self.k = self.count = 0
        self.batch = 1
        self.dtype = torch.bfloat16

    @property
    def m(self) -> int:
        """The rows of a batch."""
        return self.count // self.batch

    @property
    def extents(self) -> dict[Axis, int]:
        return {Axis.ROWS: self.count, Axis.COLUMNS: self.n}

    @property
    def wide_extents(self) -> dict[Axis, int]:
        return {Axis.ROWS: self.count, Axis.COLUMNS: 2 * self.n}

    def add(self, node: torch.fx.Node) -> tuple[tuple[int, ...], Layout]:
        """Takes a product of the graph.

        Returns:
            The numbers of the products that it is, and the layout of its result.
        """
        left, right = (node.args[i] for i in FACTORS[node.target])
        assert isinstance(left, torch.fx.Node)
        assert isinstance(right, torch.fx.Node)
        _check(node, left, right)
        *lead, m, k = shape_of(left)
        width = shape_of(right)[-1]
        halves = 1 if self._split is None else 2
        if width % halves:
            raise refuse(node, f"its {width} columns are no two halves")
        n, count = width // halves, math.prod(lead) * m
        a_layout = (*_batch(lead, m), axes.whole(Axis.ROWS, m), axes.whole(Axis.INNER, k))
        b_layout = (*_batch(lead, m), axes.whole(Axis.INNER, k), axes.whole(Axis.COLUMNS, width))
        a = self._read(node, left, views.picked(a_layout), "left")
        b = self._read(node, right, views.picked(b_layout), "right")
        batched = bool(axes.atoms_along([dim.walk for dim in b.dims], Axis.ROWS))
        batch = math.prod(lead) if batched else 1
        if self.a is None:
            self.a, self.n, self.k, self.count, self.batch = a, n, k, count, batch
            self.dtype = dtype_of(left)
        elif (a, n, batch) != (self.a, self.n, self.batch):
            raise self._second(node, "its left factor or its number of columns is another")
        self._nodes.append(node)
        numbers = [self._number(node, part) for part in self._parts(node, b)]
        return tuple(numbers), (*_batch(lead, m), axes.whole(Axis.ROWS, m), axes.whole(Axis.COLUMNS, width))

    def _second(self, node: torch.fx.Node, why: str) -> TraceError:
        return refuse(
            node,
            f"a second matrix product: {why}; a kernel holds one, here {self._nodes[0].name}, or two with "
            "the same left factor and as many columns",
        )

    def _parts(self, node: torch.fx.Node, b: Read) -> list[Read]:
        if self._split is None:
            return [b]
        parts = []
        for half in (0, 1):
            dims = half_of(b.dims, half, self._split.interleaved, self.n)
            if dims is None:
                raise refuse(node, "its right factor holds the two weights side by side in no regular way")
            parts.append(Read(b.position, dims, b.cast))
        return parts

    def _number(self, node: torch.fx.Node, b: Read) -> int:
        if b in self.b:
            return self.b.index(b)
        if len(self.b) == 2:
            raise refuse(node, "a third matrix product; a kernel holds two of the same left factor")
        self.b.append(b)
        return len(self.b) - 1

    def rows(self) -> tuple[Rows, tuple[tuple[int, int, int], ...] | None]:
        """The dimensions of the rows, and where a call finds their sizes.

        The latter is None where they are no whole dimensions of an argument.
        """
        assert self.a is not None
        found: dict[axes.Atom, tuple[int, int, int] | None] = {}
        for read in (self.a, *self.b):
            for d, dim in enumerate(read.dims):
                own = [atom for atom in dim.walk if atom.axis is Axis.ROWS]
                for atom in own:
                    source = (read.position, d, dim.size // atom.size) if dim.is_whole and atom.size else None
                    found.setdefault(atom, source if len(own) == 1 else None)
            atoms = sorted(found, key=lambda atom: -atom.stride)
            if axes.gaps(atoms, self.count) == []:
                break
        sources = [found[atom] for atom in atoms]
        rows = Rows(tuple(atom.size for atom in atoms))
        if rows.count != self.count or any(source is None for source in sources):
            return Rows((self.count,)), None
        return rows, tuple(source for source in sources if source is not None)

    def _read(self, gemm: torch.fx.Node, node: torch.fx.Node, dims: tuple[Picked, ...], side: str) -> Read:
        """The argument behind a factor of ``gemm``."""
        dtype, cast = dtype_of(node), False
        while node.op != "placeholder":
            found = views.view_of(node)
            if found is not None:
                source, view = found
                back = views.undone(dims, view, shape_of(source))
                if back is None:
                    raise refuse(gemm, f"its {side} factor is rearranged by {name_of(node)}{at(node)}")
                node, dims = source, back
            elif node.target in views.CASTS:
                node, cast = node.args[0], True  # type: ignore[assignment]
            else:
                if self._nodes:
                    raise self._second(gemm, f"its {side} factor is computed by {name_of(node)}{at(node)}")
                raise refuse(
                    gemm,
                    f"its {side} factor is computed inside the function, by {name_of(node)}{at(node)}: "
                    "a kernel starts with the GEMM, so compute the factor before the call",
                )
        return Read(self._positions[node], dims, dtype if cast and dtype_of(node) is not dtype else None)


def _check(node: torch.fx.Node, left: torch.fx.Node, right: torch.fx.Node) -> None:
    dtype = dtype_of(left)
    if dtype not in _DTYPES:
        raise refuse(node, f"its factors are {dtype}; allowed: torch.bfloat16, torch.float16")
    if dtype_of(right) is not dtype:
        raise refuse(node, f"its factors are {dtype} and {dtype_of(right)}; allowed: one dtype for both")
    k, n = shape_of(right)[-2:]
    if n == 1:
        raise refuse(node, "a matrix-vector product, N = 1")
    if n == 0 or k == 0:
        raise refuse(node, f"a product of N = {n} columns and K = {k}; both must be at least 1")


def _batch(lead: list[int], m: int) -> list[Dim]:
    assert len(lead) <= 1  # bmm
    return [axes.joined([axes.Atom(Axis.ROWS, m, size)]) for size in lead]
