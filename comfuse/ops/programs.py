"""What the ops know of a spec's text: parsed once, taken apart in the way of a call's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from comfuse.errors import SpecError
from comfuse.generator.passes import normalize
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Operand, Output, Space
from comfuse.reference import TORCH_DTYPES

Sizes = Sequence[int]
_ROW_BLOCK = 128


@dataclass(frozen=True)
class Program:
    """A spec, and which of a call's arguments are what of it."""

    spec: FusedSpec
    output_spaces: tuple[Space, ...]

    @cached_property
    def tensors(self) -> tuple[Operand, ...]:
        """The operands that are tensors."""
        return tuple(operand for operand in self.spec.operands if operand.space is not Space.SCALAR)

    @cached_property
    def scalar_count(self) -> int:
        return len(self.spec.operands) - len(self.tensors)

    @cached_property
    def factor_names(self) -> tuple[str, ...]:
        """How messages call the B of each product."""
        return ("b", "b1")[: self.spec.products]

    @cached_property
    def splits_heads(self) -> bool:
        return any(output.heads is not None for output in self.spec.outputs)

    def split(self, b: Tensor, operands: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The B of each product, and the operands of the spec: the second B comes first among a call's."""
        second = self.spec.products - 1
        return [b, *operands[:second]], list(operands[second:])

    def rows(self, leading: torch.Size) -> int:
        """What kernels are chosen by: all rows, those that pad a batch to whole row blocks included."""
        if not self.spec.batched or leading[0] == 1:
            return leading.numel()
        batch, m = leading
        return batch * -(-m // _ROW_BLOCK) * _ROW_BLOCK

    def output_shape(self, output: Output, space: Space, leading: Sizes) -> tuple[int, ...]:
        """The shape of an output, for an A with these leading sizes."""
        n, lead = self.spec.n, tuple(leading)
        of_batches = lead[:1] if self.spec.batched else ()
        if space is Space.SCALAR:
            return of_batches
        if space is Space.ROW:
            return (*of_batches, n)
        if space is Space.COLUMN:
            return lead
        if space is Space.GROUP:
            assert self.spec.group is not None
            return (*lead, n // self.spec.group)
        if output.heads is not None:
            return (*lead[:-1], n // output.heads, lead[-1], output.heads)
        return (*lead, n)

    def output_shapes(self, leading: Sizes) -> list[tuple[int, ...]]:
        return [
            self.output_shape(output, space, leading)
            for output, space in zip(self.spec.outputs, self.output_spaces, strict=True)
        ]

    @cached_property
    def output_dtypes(self) -> tuple[torch.dtype, ...]:
        return tuple(TORCH_DTYPES[output.dtype] for output in self.spec.outputs)


@lru_cache(maxsize=1024)
def parse(text: str) -> Program:
    """The program behind a spec's canonical text.

    Raises:
        SpecError: the text is not that of a spec, or the spec is malformed.
    """
    try:
        spec = FusedSpec.parse(text)
    except ValueError as e:
        raise SpecError("spec", str(e)) from None
    normalize(spec)  # verifies
    return Program(spec, tuple(spaces(spec)[output.node] for output in spec.outputs))
