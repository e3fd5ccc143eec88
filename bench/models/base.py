"""What a model of the benches and the tests is: a module with random weights, its inputs, its sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """How large a model and its input are.

    Attributes:
        batch: sequences; rows where the model has no sequences.
        tokens: of a sequence; 1 where the model has no sequences.
        width: of the rows that go in.
        inner: width between the two products of a feed-forward part.
        heads: of attention; 0 without attention.
        groups: heads of keys and values, where they are fewer than those of the queries; else as ``heads``.
        head: width of a head.
    """

    batch: int
    tokens: int
    width: int
    inner: int
    heads: int = 0
    groups: int = 0
    head: int = 0

    @property
    def rows(self) -> int:
        return self.batch * self.tokens


@dataclass(frozen=True)
class Model:
    """One definition for everyone.

    Attributes:
        name: unique, a word.
        title: what it is, for people.
        build: from a size to the module; its ``dropout`` is what the published model trains with.
        inputs: from a size and the number of rows or sequences to the inputs, of unit variance.
        small: for a CPU.
        middle: for tests on a GPU.
        real: as published.
        dropout: whether it draws random numbers in training.
    """

    name: str
    title: str
    build: Callable[[Size], nn.Module]
    inputs: Callable[[Size], tuple[Tensor, ...]]
    small: Size
    middle: Size
    real: Size
    dropout: bool = False

    def module(self, size: Size, *, seed: int = 0) -> nn.Module:
        """The module in float32 on the default device, in training mode.

        Scales and shifts of norms are drawn too: ones and zeros would hide whether they are applied.
        """
        torch.manual_seed(seed)
        module = self.build(size)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return module

    def arguments(self, size: Size, *, seed: int = 1) -> tuple[Tensor, ...]:
        """Inputs in float32 on the default device; the first one is what gradients are taken of."""
        torch.manual_seed(seed)
        return self.inputs(size)


def without_dropout(module: nn.Module) -> nn.Module:
    """Has this module draw no random numbers in training; the same module."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name in ("dropout", "attention_dropout"):  # of torch's and of transformers' attention
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module
