"""The workloads as torch programs: inputs, what a user would write, and the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from bench.programs import chains, graphs, networks, norms
from bench.programs.dtypes import DTYPES
from bench.workloads import ChainWorkload, GraphWorkload, NetworkWorkload, NormWorkload, Workload

__all__ = ["DTYPES", "Inputs", "gemm", "make_inputs", "outputs", "program"]


class Inputs(Protocol):
    """The tensors of one workload."""

    @property
    def x(self) -> Tensor:
        """(M, K)."""
        ...

    def tensors(self) -> tuple[Tensor | None, ...]:
        """The arguments of the workload's program, in order."""
        ...

    def gemms(self) -> list[tuple[Tensor, Tensor]]:
        """The factors (M, K) and (K, N) of each product; of a chain, of each link."""
        ...

    def rows(self, rows: Tensor) -> Inputs:
        """The same program on some of the rows."""
        ...

    def to(self, dtype: torch.dtype) -> Inputs: ...


def make_inputs(w: Workload, seed: int = 1, device: str = "cuda") -> Inputs:
    """Random inputs whose GEMM has unit variance."""
    if isinstance(w, GraphWorkload):
        return graphs.make_inputs(w, seed, device)
    if isinstance(w, ChainWorkload):
        return chains.make_inputs(w, seed, device)
    if isinstance(w, NetworkWorkload):
        return networks.make_inputs(w, seed, device)
    assert isinstance(w, NormWorkload)
    return norms.make_inputs(w, seed, device)


def program(w: Workload) -> Callable[..., Any]:
    """The workload as its models spell it: a function of Inputs.tensors(), in order.

    On float64 inputs it is the reference.  It gives a tensor or a tuple of them.
    """
    if isinstance(w, GraphWorkload):
        return graphs.GRAPHS[w.graph].function
    if isinstance(w, ChainWorkload):
        return chains.program(w)
    if isinstance(w, NetworkWorkload):
        return networks.program(w)
    assert isinstance(w, NormWorkload)
    return norms.program(w)


def outputs(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a program gives, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def gemm(i: Inputs) -> Tensor:
    """The first product alone."""
    a, b = i.gemms()[0]
    return a @ b
