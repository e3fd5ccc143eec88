"""Draws a random program from a seed: valid, and of values whose size is known, so that errors mean
something.

Two kinds.  In an exact program all values are multiples of a power of two small enough for float32, so that
whatever the order of the sums every result is one number.  A smooth program has no step that a rounding
could push over: it compares only values that are exact, and its results vary gently with its inputs.

The same seed has to give the same program: kernels are built ahead by it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, Major, Space
from tests.gpu.random_ops import EXACT, LARGEST_M, SMOOTH, Value, reduce

TILE, ROW, COLUMN, GROUP, SCALAR = Space.TILE, Space.ROW, Space.COLUMN, Space.GROUP, Space.SCALAR
_ALIGNED = (8, 64, 96, 128, 200, 256, 264, 384, 520)
_UNALIGNED = (1, 3, 7, 30, 100, 131, 257, 333)
_KS = (8, 16, 40, 64, 72, 136)
_FLOATS = (DType.BF16, DType.FP16, DType.FP32)
_INTEGERS = (DType.INT8, DType.UINT8, DType.BOOL, DType.INT32, DType.INT64)
_FP8 = (DType.E4M3, DType.E5M2)
_OPERAND_BOUND = {"exact": 2.0, "smooth": 4.0}


@dataclass(frozen=True)
class Range:
    """What an operand's data may be: multiples of 2^-grain up to ``bound``; ``grain`` None: any."""

    bound: float
    grain: int | None


@dataclass(frozen=True)
class Drawn:
    """A program with what its inputs and its comparison need."""

    builder: SpecBuilder
    exact: bool
    ranges: tuple[Range, ...]  # of the tensor operands
    scalars: tuple[float, ...]
    leads: tuple[tuple[int, ...], ...]  # A's leading sizes to run with
    shared: tuple[str, ...]  # what all batches share


class _Growth:
    """A program under way."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.exact = seed % 2 == 0
        rng = self.rng
        self.group = rng.choice((None, None, 32, 64, 128))
        self.n = rng.choice((1, 2, 3)) * self.group * rng.choice((1, 2)) if self.group else self._plain_n()
        self.batched = rng.random() < 0.2
        self.b = SpecBuilder(
            self.n,
            rng.choice(_KS),
            rng.choice(_FLOATS[:2]),
            products=1 + (rng.random() < 0.2),
            a_major=rng.choice((Major.K, Major.K, Major.MN)),
            b_major=rng.choice((Major.K, Major.K, Major.MN)),
            batched=self.batched,
            group=self.group,
        )
        self.values: list[Value] = []
        self.ranges: list[Range] = []
        self.scalars: list[float] = []
        self.shared: list[str] = []
        self.read: set[int] = set()
        self.two_levels = False

    def _plain_n(self) -> int:
        return self.rng.choice(_UNALIGNED if self.rng.random() < 0.3 else _ALIGNED)

    # --- leaves ---

    def leaves(self) -> None:
        b, rng = self.b, self.rng
        for product in range(b.products):
            bound = 4.0 * b.k if self.exact else 6.0
            self.values.append(Value(b.gemm(product), TILE, bound, 0, self.exact, measured=True))
        for index in range(rng.randint(0, 5)):
            self._operand(f"operand{index}", rng.choice((TILE, TILE, ROW, COLUMN, SCALAR)))
        for number in rng.sample((0.0, 1.0, 2.0, 0.5, -1.5, 0.25), rng.randint(1, 3)):
            self.values.append(Value(b.const(number), SCALAR, abs(number), 2, True))
        for add, space, most in (
            (b.row_index, COLUMN, LARGEST_M), (b.column_index, ROW, self.n), (b.row_count, SCALAR, LARGEST_M),
        ):  # fmt: skip
            if rng.random() < 0.1 and (self.exact or most <= 64):
                self.values.append(Value(add(), space, float(most), 0, True))

    def _operand(self, name: str, space: Space) -> None:
        rng, most = self.rng, _OPERAND_BOUND["exact" if self.exact else "smooth"]
        if space is SCALAR:
            node = self.b.load(name, space)
            self.scalars.append(rng.choice((0.5, 2.0, -1.0, 0.75)))
            self.values.append(Value(node, space, 2.0, 2, True))
            return
        dtype = rng.choice(_FLOATS + _FLOATS + (_INTEGERS + _FP8 if rng.random() < 0.5 else ()))
        strided = space is TILE and rng.random() < 0.2
        self.two_levels |= strided
        node = self.b.load(name, space, dtype, strided=strided)
        if self.batched and rng.random() < 0.5:
            self.shared.append(name)
        whole = dtype in _INTEGERS
        known = self.exact or whole or rng.random() < 0.3
        bound = 1.0 if dtype is DType.BOOL else 3.0 if whole else most
        grain = (0 if whole else 1 if dtype in _FP8 else 2) if known else None
        self.ranges.append(Range(bound, grain))
        self.values.append(Value(node, space, bound, grain or 0, known))

    # --- inner nodes ---

    def grow(self) -> None:
        wanted, reductions = self.rng.randint(1, 25), self.rng.randint(0, 4)
        first = len(self.b.spec().nodes)
        for _ in range(200):
            if len(self.b.spec().nodes) - first >= wanted:
                return
            if reductions and self.rng.random() < 0.25:
                reductions -= self._reduction()
            else:
                self._elementwise()

    def _reduction(self) -> int:
        axes = ["row", "row", *(["group", "group"] if self.group else [])]
        axes += [] if self.batched else ["col", "full"]
        axis = self.rng.choice(axes)
        x = self._pick(lambda v: v.space is TILE)
        count = {"row": self.n, "group": self.group or 1, "col": LARGEST_M, "full": LARGEST_M * self.n}[axis]
        made = reduce(self.b, self.rng, axis, x, count, exact=self.exact)
        if made is None:
            return 0
        self._add(made, x)
        return 1

    def _elementwise(self) -> None:
        steps = EXACT if self.exact else SMOOTH
        step = steps[self.rng.choice(list(steps))]
        inputs = [self._pick()]
        while len(inputs) < step.arity:
            inputs.append(self._pick(lambda v: v.fits(inputs)))
        made = step.make(self.b, inputs, exact=self.exact)
        if made is not None:
            self._add(made, *inputs)

    def _pick(self, allowed: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value, recent ones first, so that programs grow deep as well as wide."""
        found = [v for v in self.values if allowed(v)]
        return found[-1 - min(int(self.rng.expovariate(0.3)), len(found) - 1)]

    def _add(self, made: Value, *inputs: Value) -> None:
        self.values.append(made)
        self.read |= {v.node for v in inputs}

    # --- outputs ---

    def outputs(self) -> None:
        storable = [v for v in self.values if v.measured]
        unread = [v for v in storable if v.node not in self.read]
        chosen = unread[-self.rng.randint(1, 4) :]
        chosen += self.rng.sample(storable, min(len(storable), self.rng.randint(0, 4 - len(chosen))))
        for index, v in enumerate(dict.fromkeys(chosen)):
            strided, heads = False, None
            if v.space is TILE:
                strided = self.rng.random() < 0.3
                sizes = [d for d in (8, 32, 64) if self.n % d == 0]
                heads = self.rng.choice(sizes) if sizes and self.rng.random() < 0.15 else None
            self.two_levels |= heads is not None
            self.b.output(f"out{index}", v.node, self._dtype_of(v), strided=strided, heads=heads)

    def _dtype_of(self, v: Value) -> DType:
        kinds = [*_FLOATS, *_FLOATS]
        if v.bound > 6e4:
            kinds = [DType.FP32, DType.BF16]
        if self.exact:
            kinds += [*_INTEGERS, *_FP8]
        elif v.bound <= 400.0 and v.space is TILE:
            kinds += _FP8
        return self.rng.choice(kinds)

    def leads(self) -> tuple[tuple[int, ...], ...]:
        if self.batched:
            choices = [(1, 129), (3, 64), (5, 33), (4, 128), (2, 200), (7, 1)]
        elif self.two_levels:
            choices = [(1, 1), (2, 65), (3, 43), (5, 100), (2, 128), (1, 129)]
        else:
            choices = [(1,), (5,), (127,), (128,), (129,), (200,), (257,), (300,), (500,)]
        return tuple(self.rng.sample(choices, 2))


def draw(seed: int) -> Drawn:
    """The program of a seed."""
    g = _Growth(seed)
    g.leaves()
    g.grow()
    g.outputs()
    if g.batched and g.rng.random() < 0.4:
        g.shared.append("b")
    return Drawn(g.b, g.exact, tuple(g.ranges), tuple(g.scalars), g.leads(), tuple(g.shared))
