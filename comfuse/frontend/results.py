"""Which values a kernel stores, and how the function's results are made of them.

A result that is a view of an output as the op gives it is returned as that view, as torch does.  Where torch
gives a contiguous tensor and the view is not, the kernel stores the output in that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from comfuse.frontend import axes
from comfuse.frontend.arguments import arrange
from comfuse.frontend.axes import Atom, Axis, Shape
from comfuse.frontend.errors import TraceError
from comfuse.frontend.forms import OwnForm, ResultForm, Rows, storage_strides
from comfuse.frontend.lowering import Lowering
from comfuse.frontend.placing import Joined, Term, half_of
from comfuse.frontend.views import Picked, dtype_of, picked, refuse, shape_of
from comfuse.generator.spec import Space
from comfuse.ops.memory import collapse
from comfuse.reference import SPEC_DTYPES

Part = tuple[Term, tuple[Picked, ...]]


class Results:
    """The results of a function; adds the outputs that they are made of to the spec.

    Attributes:
        lead: the dimensions of the rows as the op gets them.
        forms: one for each result.
        names: of the nodes of the spec, with names for outputs that the user gave none.
    """

    def __init__(
        self,
        low: Lowering,
        rows: Rows,
        nodes: Sequence[torch.fx.Node],
        names: dict[int, str],
        unnamed: str,
    ) -> None:
        self._low = low
        self._rows = rows
        self._count = len(nodes)
        self._unnamed = unnamed
        self._indices: dict[tuple[object, ...], int] = {}
        self._inside: int | None = None  # rows between the heads of head-split outputs
        self._cuts = self._cuts_of_operands()  # numbers of rows between which something changes
        self.names = dict(names)
        self.forms = [self._form(i, node) for i, node in enumerate(nodes)]
        self.lead = self._lead()

    def _form(self, number: int, node: torch.fx.Node) -> ResultForm | OwnForm:
        found = self._low.env.get(node)
        if not isinstance(found, Term | Joined):
            raise refuse(node, "it is returned, but does not depend on the GEMM: compute it outside")
        if dtype_of(node) not in SPEC_DTYPES:
            allowed = ", ".join(str(d).removeprefix("torch.") for d in SPEC_DTYPES)
            raise refuse(node, f"it is returned as {dtype_of(node)}; allowed: {allowed}: convert it")
        if isinstance(found, Joined) or found.is_wide:
            parts = found.parts if isinstance(found, Joined) else self._halves(node, found)
            own = self._own(number, node, parts)
            if own is None:
                raise _unordered(node)
            return own
        form = self._view(node, found)
        if form is None:
            own = self._own(number, node, ((found, picked(found.layout)),))
            if own is not None:
                return own
            form = ResultForm(0, found.space, found.layout, found.row, found.column, copied=True)
        return form.at_index(self._store(number, node, found, form.heads, form.heads is not None))

    def _store(self, number: int, node: torch.fx.Node, term: Term, key: object, strided: bool) -> int:
        """The output that a value is; ``key`` tells apart outputs that lie in different ways."""
        (value,) = term.values
        full = (value.node, dtype_of(node), key)
        if full not in self._indices:
            self._indices[full] = len(self._indices)
            name = self.names.get(value.node) or (
                self._unnamed if self._count == 1 else f"{self._unnamed}{number}"
            )
            self.names.setdefault(value.node, name)
            heads = key if isinstance(key, int) else None
            dtype = SPEC_DTYPES[dtype_of(node)]
            self._low.builder.output(name, value.node, dtype, strided=strided, heads=heads)
        return self._indices[full]

    # --- a view of an output ------------------------------------------------------------------------

    def _view(self, node: torch.fx.Node, term: Term) -> ResultForm | None:
        plain = ResultForm(0, term.space, term.layout, term.row, term.column)
        strides = self._strides(plain)
        wanted = _contiguous_strides(node)
        if strides is not None and (wanted is None or axes.same_strides(strides, wanted, shape_of(node))):
            return plain
        if term.space is not Space.TILE:
            return None
        return self._split_by_heads(plain, wanted or axes.row_major(shape_of(node)))

    def _strides(self, form: ResultForm, inside: int | None = None) -> Shape | None:
        found = storage_strides(form, self._low.n, self._low.builder.group, inside or self._low.products.m)
        return None if found is None else found[0]

    def _split_by_heads(self, plain: ResultForm, wanted: Shape) -> ResultForm | None:
        """The result as a part of (..., N / D, S, D): D its innermost columns, S the rows around them."""
        atoms = axes.joined(atom for dim in plain.layout for atom in dim)
        if len(atoms) < 2 or atoms[-1].axis is not Axis.COLUMNS or atoms[-1].stride != 1:
            return None
        heads, before = atoms[-1].size, atoms[-2]
        if self._low.n % heads or plain.column % heads or before.axis is not Axis.ROWS or before.stride != 1:
            return None
        if not self._nests(before.size):
            return None
        form = ResultForm(0, plain.space, plain.layout, plain.row, plain.column, heads)
        strides = self._strides(form, before.size)
        if strides is None or not axes.same_strides(strides, wanted, plain.shape):
            return None
        self._inside = before.size
        return form

    def _nests(self, inside: int) -> bool:
        """Whether ``inside`` rows can be the innermost dimension of the rows."""
        m = self._low.products.m
        if self._inside not in (None, inside) or any(cut % inside for cut in (m, *self._cuts)):
            return False
        return self._low.products.batch == 1 or inside == m

    # --- a tensor of its own ------------------------------------------------------------------------

    def _halves(self, node: torch.fx.Node, term: Term) -> tuple[Part, ...]:
        """The two products that a result has side by side."""
        split, n = self._low.split, self._low.n
        assert split is not None
        parts = []
        for half, value in enumerate(term.values):
            dims = half_of(picked(term.layout), half, split.interleaved, n)
            if dims is None:
                raise _unordered(node)
            parts.append((Term((value,), tuple(dim.walk for dim in dims)), dims))
        return tuple(parts)

    def _own(self, number: int, node: torch.fx.Node, parts: tuple[Part, ...]) -> OwnForm | None:
        """The result as a tensor that the kernel writes these parts of; None if it cannot."""
        strided = [self._is_strided(node, term, dims) for term, dims in parts]
        cuts = {a.stride * a.size for term, _ in parts for a in axes.atoms_along(term.layout, Axis.ROWS)}
        if any(flag is None for flag in strided) or any(cut % (self._inside or 1) for cut in cuts):
            return None
        self._cuts |= cuts
        indices = []
        for (term, dims), flag in zip(parts, strided, strict=True):
            indices.append((self._store(number, node, term, (number, dims), bool(flag)), dims))
        return OwnForm(tuple(indices))

    def _is_strided(self, node: torch.fx.Node, term: Term, dims: tuple[Picked, ...]) -> bool | None:
        """Whether an output that lies so is more than rows of contiguous columns; None: it cannot."""
        n, count = self._low.n, self._low.products.count
        if term.space is not Space.TILE or term.part:
            return None
        found = arrange(dims, [(Axis.ROWS, count), (Axis.COLUMNS, n)], (count, n))
        if found.repeated != found.expanded:
            return None
        strides = found.strided(torch.empty(shape_of(node), device="meta")).stride()
        levels = list(zip(found.repeated, strides, strict=True))
        split = len(axes.atoms_along(term.layout, Axis.ROWS))
        rows, columns = collapse(levels[:split]), collapse(levels[split:])
        if len(columns) > 1 or len(rows) > 2:
            return None
        return len(rows) > 1 or columns[0][1] != 1 or n % 8 != 0

    # --- rows ---------------------------------------------------------------------------------------

    def _cuts_of_operands(self) -> set[int]:
        cuts = set()
        for read in self._low.operands.reads:
            own = axes.joined(axes.atoms_along([d.walk for d in read.dims], Axis.ROWS))
            if read.space is Space.TILE and len(own) == 1 and own[0].size != self._low.products.count:
                cuts |= {own[0].stride, own[0].stride * own[0].size}
        return cuts - {1}

    def _lead(self) -> tuple[Atom, ...]:
        """The rows' own dimensions, cut where an operand or a result needs it."""
        products = self._low.products
        if products.batch > 1:
            return (Atom(Axis.ROWS, products.m, products.batch), Atom(Axis.ROWS, 1, products.m))
        sizes = self._rows.sizes
        cuts = {math.prod(sizes[j:]) for j in range(len(sizes))}
        if self._inside is not None:  # the innermost of them
            cuts = {cut for cut in cuts if cut % self._inside == 0} | {self._inside}
        ends = sorted((cuts | self._cuts) - {1} | {products.count})
        nested = all(outer % inner == 0 for inner, outer in pairwise(ends))
        if not nested or (self._inside is not None and ends[0] != self._inside):
            raise TraceError(
                f"its operands and results divide the {products.count} rows in ways that do not nest"
            )
        lead = [
            Atom(Axis.ROWS, inner, outer // inner) for inner, outer in zip([1, *ends], ends, strict=False)
        ]
        return tuple(lead[::-1])


def _unordered(node: torch.fx.Node) -> TraceError:
    return refuse(
        node,
        f"it is returned with shape {shape_of(node)}, in an order of rows and columns that a kernel does not "
        "store: change it after the call",
    )


def _contiguous_strides(node: torch.fx.Node) -> Shape | None:
    """The strides that torch's own result has, if it is contiguous."""
    tensor = node.meta["val"]
    return tuple(tensor.stride()) if tensor.is_contiguous() else None
