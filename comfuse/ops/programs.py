"""What the ops know of a text: parsed once, taken apart in the way of a call's arguments.

The text is that of a spec, or of a chain, whose links the ops read one after the other: the factors and then
the operands of each.  A call's operands come in the same order, and all factors but the first are among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from comfuse.errors import SpecError
from comfuse.generator.chain import ChainSpec, parse_program, verify_chain
from comfuse.generator.passes import normalize
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Major, Operand, Output, Space
from comfuse.reference import TORCH_DTYPES

Sizes = Sequence[int]
_ROW_BLOCK = 128
_NAMES: dict[str, str] = {}


@dataclass(frozen=True)
class Factor:
    """The B of a product, (n, k), or its A where that is not the first one's: (M, k), without an n.

    ``place``: which of a call's operands it is; -1: none, the call's b.
    """

    name: str
    n: int | None
    k: int
    major: Major
    place: int


@dataclass(frozen=True)
class Input:
    """A tensor operand of a link, over the (M, N) of that link.  ``place``: which of a call's operands."""

    operand: Operand
    link: FusedSpec
    place: int

    @property
    def name(self) -> str:
        return self.operand.name

    @property
    def n(self) -> int:
        return self.link.n


@dataclass(frozen=True)
class Program:
    """A spec or a chain, and which of a call's arguments are what of it.

    ``links``: the spec itself, or those of the chain.
    """

    spec: FusedSpec | ChainSpec
    links: tuple[FusedSpec, ...]
    factors: tuple[Factor, ...]
    tensors: tuple[Input, ...]
    output_spaces: tuple[Space, ...]

    @staticmethod
    def of(spec: FusedSpec | ChainSpec) -> Program:
        """The program of a spec that has been verified."""
        links = (spec,) if isinstance(spec, FusedSpec) else spec.links
        factors: list[Factor] = []
        tensors: list[Input] = []
        for number, link in enumerate(links):
            for product in range(link.products):
                pair = link.pair_of(product)
                if product > 0 and link.second is not None:
                    place = len(factors) + len(tensors) - 1
                    factors.append(Factor(f"a{product}", None, pair.k, pair.a_major, place))
                place = len(factors) + len(tensors) - 1
                factors.append(Factor(_factor_name(number, product), link.n, pair.k, pair.b_major, place))
            for operand in link.operands:
                if operand.space is not Space.SCALAR:
                    tensors.append(Input(operand, link, len(factors) + len(tensors) - 1))
        last = links[-1]
        found = spaces(last)
        return Program(
            spec, links, tuple(factors), tuple(tensors), tuple(found[output.node] for output in last.outputs)
        )

    @property
    def is_chain(self) -> bool:
        return len(self.links) > 1

    @property
    def k(self) -> int:
        """Columns of A."""
        return self.links[0].k

    @property
    def n(self) -> int:
        """Columns of the outputs."""
        return self.links[-1].n

    @property
    def group(self) -> int | None:
        return self.links[-1].group

    @property
    def dtype(self) -> DType:
        """Element type of all factors."""
        return self.links[0].dtype

    @property
    def batched(self) -> bool:
        return self.links[0].batched

    @property
    def outputs(self) -> tuple[Output, ...]:
        return self.links[-1].outputs

    @cached_property
    def scalar_count(self) -> int:
        return sum(operand.space is Space.SCALAR for link in self.links for operand in link.operands)

    @cached_property
    def splits_heads(self) -> bool:
        return any(output.heads is not None for output in self.outputs)

    def split(self, b: Tensor, operands: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The factors of the products but the first A, and the operands of the links."""
        factors = [b, *(operands[factor.place] for factor in self.factors[1:])]
        return factors, [operands[tensor.place] for tensor in self.tensors]

    def joined(self, factors: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
        """A call's b and operands, from what :meth:`split` gives."""
        places = {factor.place: x for factor, x in zip(self.factors, factors, strict=True)}
        places |= {input.place: x for input, x in zip(self.tensors, tensors, strict=True)}
        b, *operands = (places[place] for place in range(-1, len(places) - 1))
        return b, operands

    def rows(self, leading: torch.Size) -> int:
        """What kernels are chosen by: all rows, those that pad a batch to whole row blocks included."""
        if not self.batched or leading[0] == 1:
            return leading.numel()
        batch, m = leading
        return batch * -(-m // _ROW_BLOCK) * _ROW_BLOCK

    def output_shape(self, output: Output, space: Space, leading: Sizes) -> tuple[int, ...]:
        """The shape of an output, for an A with these leading sizes."""
        n, lead = self.n, tuple(leading)
        of_batches = lead[:1] if self.batched else ()
        if space is Space.SCALAR:
            return of_batches
        if space is Space.ROW:
            return (*of_batches, n)
        if space is Space.COLUMN:
            return lead
        if space is Space.GROUP:
            assert self.group is not None
            return (*lead, n // self.group)
        if output.heads is not None:
            return (*lead[:-1], n // output.heads, lead[-1], output.heads)
        return (*lead, n)

    def output_shapes(self, leading: Sizes) -> list[tuple[int, ...]]:
        return [
            self.output_shape(output, space, leading)
            for output, space in zip(self.outputs, self.output_spaces, strict=True)
        ]

    @cached_property
    def output_dtypes(self) -> tuple[torch.dtype, ...]:
        return tuple(TORCH_DTYPES[output.dtype] for output in self.outputs)


def _factor_name(link: int, product: int) -> str:
    """How messages call a B: b, b1 of the first link; w1, w1_1 of the next."""
    if link == 0:
        return f"b{product or ''}"
    return f"w{link}_{product}" if product else f"w{link}"


@lru_cache(maxsize=1024)
def parse(text: str) -> Program:
    """The program behind the canonical text of a spec or a chain.

    Raises:
        SpecError: the text is of neither, or what it is of is malformed.
    """
    try:
        spec = parse_program(text)
    except ValueError as e:
        raise SpecError("spec", str(e)) from None
    if isinstance(spec, FusedSpec):
        normalize(spec)  # verifies
    else:
        verify_chain(spec)
    return Program.of(spec)


def called(text: str, name: str) -> str:
    """The text, which is from now on that of the op of this name (``fused_gemm``)."""
    _NAMES.setdefault(text, name)
    return text


def name_of(text: str) -> str:
    """What fallbacks of a program are counted under: the op that runs it, or ``comfuse::region``.

    By the text alone, so that a call costs nothing more: a region of exactly that text is counted there too.
    """
    return _NAMES.get(text, "comfuse::region")
