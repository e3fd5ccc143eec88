"""The first link of a chain, node by node, as what reads no reduction and affine forms of the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from comfuse.generator.errors import PlanError
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes.graph import Graph, moved
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Node, Space


@dataclass(frozen=True)
class Affine:
    """``scale * tile`` and the sum of ``t * c``; a factor that is None is 1, a tile that is None 0.

    Numbers of nodes: ``tile`` and every ``c`` read no reduction but the peak, scale and every ``t`` are
    values a row.
    """

    tile: int | None
    scale: int | None = None
    terms: tuple[tuple[int | None, int], ...] = ()


class FirstLink:
    """Builds a normalised link anew in ``graph``; ``form`` says what one of its values became.

    ``place`` has what is as it was, ``forms`` the tiles that read reductions.

    Raises:
        PlanError: a reduction cannot be deferred; names the node that reads it, and says why.
    """

    def __init__(self, spec: FusedSpec) -> None:
        self.spec = spec
        self.spaces = spaces(spec)
        self.graph = Graph(spec)
        self.place: dict[int, int] = {}
        self.forms: dict[int, Affine] = {}
        self.late: set[int] = set()  # new nodes that read a reduction
        self.peak: int | None = None
        late = _reads_reductions(spec)
        self.has_exponentials = any(
            node.op == "exp" and late[i] and self.spaces[i] is Space.TILE for i, node in enumerate(spec.nodes)
        )
        for i, node in enumerate(spec.nodes):
            self._take(i, node)

    def form(self, i: int) -> Affine:
        """Node ``i`` of the spec, in nodes of the graph."""
        if i in self.forms:
            return self.forms[i]
        new, space = self.place[i], self.spaces[i]
        if space is Space.TILE:
            return Affine(new)
        if space is Space.COLUMN:
            return Affine(None, None, ((new, self.graph.const(1.0)),))
        return Affine(None, None, ((None, new),))

    def reads_peak(self, tile: int | None) -> bool:
        """Whether a tile of the graph is made of exponentials."""
        return tile is not None and tile in self.late

    # --- node by node ---

    def _take(self, i: int, node: Node) -> None:
        if node.op in REDUCTIONS:
            self._reduce(i, node)
        elif self._is_of_softmax(node) and self.has_exponentials:
            self._softmax(i, node)
        elif self.spaces[i] is Space.TILE and any(self._is_late(j) for j in node.inputs):
            self.forms[i] = self._affine(node)
        else:
            self._keep(i, self.graph.add(moved(node, self._places(node))))

    def _is_late(self, i: int) -> bool:
        return i in self.forms or self.place[i] in self.late

    def _places(self, node: Node) -> list[int]:
        """As :func:`moved` takes it."""
        return [self.place.get(j, -1) for j in range(max(node.inputs, default=-1) + 1)]

    def _keep(self, i: int, new: int) -> None:
        self.place[i] = new
        node = self.graph.nodes[new]
        if node.op in REDUCTIONS or any(j in self.late for j in node.inputs):
            self.late.add(new)

    def _new(self, op: str, *inputs: int, name: str | None = None) -> int:
        new = self.graph.op(name or f"{op}{len(self.graph.nodes)}", op, *inputs)
        if op in REDUCTIONS or any(j in self.late for j in inputs):
            self.late.add(new)
        return new

    def _reduce(self, i: int, node: Node) -> None:
        reduction = REDUCTIONS[node.op]
        if reduction.axis != "row":
            raise PlanError("a reduction between the GEMMs that is not along rows", node.name)
        (x,) = node.inputs
        if x in self.forms:
            self._keep(i, self._sum_of_late(node, self.forms[x]))
        elif reduction.monoid.name in ("argmax", "argmin"):
            raise PlanError("an index between the GEMMs, where no one has all of a row in order", node.name)
        elif node.op == "row_softmax" and self.has_exponentials:
            self.place[i] = self.place[x]  # fields are of max and sum, apart
        else:
            self._keep(i, self._new(node.op, self.place[x], name=node.name))

    def _sum_of_late(self, node: Node, form: Affine) -> int:
        """The sum of a row, which is affine too."""
        if node.op != "row_sum":
            raise PlanError(f"{node.op} of a value that reads a reduction of the same row", node.name)
        parts: list[int] = []
        if form.tile is not None:
            total = self._new("row_sum", form.tile, name=node.name)
            parts.append(total if form.scale is None else self._new("mul", total, form.scale))
        for t, c in form.terms:
            value = self.graph.constant(c)
            if value is None:
                raise PlanError("a sum of a value that a vector was added to behind a reduction", node.name)
            count = self.graph.const(value * self.spec.n)
            parts.append(count if t is None else self._new("mul", t, count))
        result = parts[0]
        for part in parts[1:]:
            result = self._new("add", result, part)
        return result

    def _is_of_softmax(self, node: Node) -> bool:
        return node.op == "field" and self.spec.nodes[node.inputs[0]].op == "row_softmax"

    def _softmax(self, i: int, node: Node) -> None:
        """A field of max and sum of exponentials, which are apart where exponentials are handed on."""
        softmax = node.inputs[0]
        x = self.place[softmax]
        peak = self._new("row_max", x, name=f"{self.spec.nodes[softmax].name}_max")
        if node.field == "max":
            self._keep(i, peak)
            return
        total = self._new("row_sum", self._exponential(x, node.name), name=f"{node.name}_sum")
        if node.field == "sumexp":
            self._keep(i, total)
            return
        lse = self._new("add", peak, self._new("log", total))
        self._keep(i, self._new("where", self._new("isinf", peak), peak, lse, name=node.name))

    def _exponential(self, x: int, name: str) -> int:
        """``exp(x - max(x))``; its maximum is that of the kernel's blocks so far."""
        peak = self._new("row_max", x, name=f"{self.graph.nodes[x].name}_max")
        if self.peak not in (None, peak):
            raise PlanError("exponentials of two values, each shifted by a maximum of its own", name)
        self.peak = peak
        difference = self._new("sub", x, peak, name=f"{self.graph.nodes[x].name}_shifted")
        return self._new("exp", difference, name=f"{self.graph.nodes[x].name}_exp")

    # --- tiles that read reductions ---

    def _affine(self, node: Node) -> Affine:
        rules: dict[str, Callable[[Node], Affine]] = {
            "add": lambda n: self._sum(n, self.form(n.inputs[0]), self.form(n.inputs[1])),
            "sub": lambda n: self._sum(n, self.form(n.inputs[0]), self._map("neg", self.form(n.inputs[1]))),
            "neg": lambda n: self._map("neg", self.form(n.inputs[0])),
            "mul": self._product,
            "div": self._quotient,
            "where": self._choice,
            "exp": self._exp,
        }
        if node.op not in rules:
            raise PlanError(
                f"{node.op} of a value that reads a reduction of its row, which can only be scaled and"
                " shifted before the whole row is there",
                node.name,
            )
        return rules[node.op](node)

    def _sum(self, node: Node, a: Affine, b: Affine) -> Affine:
        merged = self._merged((*a.terms, *b.terms))
        if a.tile is None or b.tile is None:
            tiles = a if b.tile is None else b
            return Affine(tiles.tile, tiles.scale, merged)
        if a.scale != b.scale:
            raise PlanError("a sum of two tiles that are scaled differently by their row", node.name)
        if self.reads_peak(a.tile) != self.reads_peak(b.tile):
            raise PlanError(
                "a sum of exponentials, which are scaled when their maximum grows, and of what is none",
                node.name,
            )
        return Affine(self._new("add", a.tile, b.tile, name=node.name), a.scale, merged)

    def _merged(self, terms: tuple[tuple[int | None, int], ...]) -> tuple[tuple[int | None, int], ...]:
        """One term for each vector, if it is multiplied by something."""
        merged: list[tuple[int | None, int]] = []
        one = self.graph.const(1.0)
        for t, c in terms:
            place = next((i for i, (_, before) in enumerate(merged) if before == c), None)
            before = None if place is None else merged[place][0]
            if place is None or (t is None and before is None):
                merged.append((t, c))
            else:
                total = self._new("add", one if before is None else before, one if t is None else t)
                merged[place] = (total, c)
        return tuple(merged)

    def _map(self, op: str, form: Affine, *more: int) -> Affine:
        """Element by element, of tile and vectors: a function f with f(s * x) = s * f(x)."""

        def vector(c: int) -> int:
            value = self.graph.constant(c)
            return self._new(op, c, *more) if value is None or op != "neg" else self.graph.const(-value)

        tile = None if form.tile is None else self._new(op, form.tile, *more)
        return Affine(tile, form.scale, tuple((t, vector(c)) for t, c in form.terms))

    def _product(self, node: Node) -> Affine:
        a, b = node.inputs
        if b in self.forms:
            a, b = b, a
        if b in self.forms:
            raise PlanError("a product of two values that read reductions of their row", node.name)
        if a not in self.forms and self.spaces[a] is Space.COLUMN:
            a, b = b, a  # a tile or a vector, times a value a row
        return self._scaled(node, self.form(a), b)

    def _quotient(self, node: Node) -> Affine:
        a, b = node.inputs
        if b in self.forms:
            raise PlanError("a division by a value that reads a reduction of its row", node.name)
        return self._scaled(node, self.form(a), b)

    def _scaled(self, node: Node, form: Affine, by: int) -> Affine:
        """Times (or over, as the node says) something that is no affine form itself."""
        factor, space = self.place[by], self.spaces[by]
        one = self.graph.const(1.0)

        def scaled(x: int | None) -> int:
            return (
                factor
                if x is None and node.op == "mul"
                else self._new(node.op, one if x is None else x, factor)
            )

        if space is Space.COLUMN:
            scale = None if form.tile is None else scaled(form.scale)
            return Affine(form.tile, scale, tuple((scaled(t), c) for t, c in form.terms))
        if space is Space.SCALAR:  # constants stay constants, so that an exponential can tell a shift
            is_shift = {x: x[0] is not None and self.graph.constant(x[1]) is not None for x in form.terms}
            rest = replace(form, terms=tuple(x for x in form.terms if not is_shift[x]))
            shifts = tuple((scaled(t), c) for t, c in form.terms if is_shift[t, c])
            mapped = self._map(node.op, rest, factor)
            return replace(mapped, terms=(*mapped.terms, *shifts))
        if space is not Space.TILE or not form.terms:
            return self._map(node.op, form, factor)
        if form.tile is None and len(form.terms) == 1:
            ((t, c),) = form.terms
            return Affine(self._new(node.op, c, factor), t)
        raise PlanError("a tile times a value that a value a row was added to", node.name)

    def _choice(self, node: Node) -> Affine:
        """``where`` of one such value and zero."""
        condition, a, b = node.inputs
        chosen, other = (a, b) if a in self.forms else (b, a)
        nodes = self.spec.nodes
        if chosen not in self.forms or condition in self.forms or nodes[other].value != 0.0:
            raise PlanError("a choice that reads a reduction of its row, other than of zero", node.name)
        form, zero = self.forms[chosen], self.graph.const(0.0)
        where = self.place[condition]

        def choose(x: int) -> int:
            return self._new("where", where, *((x, zero) if chosen == a else (zero, x)))

        if self.spaces[condition] is Space.COLUMN:
            one = self.graph.const(1.0)
            scale = None if form.tile is None else choose(one if form.scale is None else form.scale)
            return Affine(
                form.tile, scale, tuple((choose(one if t is None else t), c) for t, c in form.terms)
            )
        if (self.spaces[condition] is Space.TILE and form.terms) or where in self.late:
            raise PlanError("a choice, element by element, of a value shifted by its row", node.name)
        tile = None if form.tile is None else choose(form.tile)
        return Affine(tile, form.scale, tuple((t, choose(c)) for t, c in form.terms))

    def _exp(self, node: Node) -> Affine:
        form = self.form(node.inputs[0])
        shifts = [t for t, c in form.terms if self.graph.constant(c) == 1.0]
        minus = [t for t, c in form.terms if self.graph.constant(c) == -1.0]
        known = len(shifts) + len(minus) == len(form.terms)
        if form.tile is None or self.reads_peak(form.tile) or form.scale in self.late or not known:
            raise PlanError("an exponential of a value that is more than shifted by its row", node.name)
        x = form.tile if form.scale is None else self._new("mul", form.tile, form.scale)
        tile = self._exponential(x, node.name)
        assert self.peak is not None
        exponent, one = self.peak, self.graph.const(1.0)
        for op, row_values in (("add", shifts), ("sub", minus)):
            for t in row_values:
                exponent = self._new(op, exponent, one if t is None else t)
        return Affine(tile, self._new("exp", exponent, name=f"{node.name}_scale"))


def _reads_reductions(spec: FusedSpec) -> list[bool]:
    """For each node, whether it reads a reduction; itself included."""
    result: list[bool] = []
    for node in spec.nodes:
        result.append(node.op in REDUCTIONS or any(result[i] for i in node.inputs))
    return result
