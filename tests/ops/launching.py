"""Programs for tests of the binding, and one launch of an emulated kernel."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from comfuse import reference
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Major
from comfuse.ops import programs
from comfuse.reference import TORCH_DTYPES
from tests.ops.emulated import emulate
from tests.ops.host_binding import Host

BF16, FP32 = DType.BF16, DType.FP32
K = 16
# A spec of its own for each test, since nothing is ever taken out of the table.
_SCALES = count(1)


def builder(n: int = 24, **options: object) -> SpecBuilder:
    return SpecBuilder(n, K, BF16, **options)  # type: ignore[arg-type]


def finish(b: SpecBuilder, y: int, dtype: DType = FP32, **options: object) -> FusedSpec:
    """A spec that no other test has."""
    b.output("y", b.op("mul", y, b.const(1.0 + next(_SCALES) / 64)), dtype, **options)  # type: ignore[arg-type]
    return b.spec()


def random(*shape: int, dtype: DType = BF16) -> Tensor:
    if dtype in (DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.BOOL):
        return torch.randint(0, 2 if dtype is DType.BOOL else 100, shape).to(TORCH_DTYPES[dtype])
    return torch.randn(shape).to(TORCH_DTYPES[dtype])


def launch(host: Host, spec: FusedSpec, a: Tensor, b: Tensor, operands: tuple[Tensor, ...] = ()) -> None:
    """Runs ``spec`` on an emulated kernel and holds all outputs against the reference."""
    host.register(spec, run=emulate(spec))
    results = host.call(spec, a, b, operands)
    factors, rest = programs.parse(spec.text()).split(b, operands)
    expected = reference.evaluate(spec, a, factors if len(factors) > 1 else b, rest)
    for got, wanted in zip(results if len(spec.outputs) > 1 else [results], expected, strict=True):
        assert (got.shape, got.dtype, got.is_contiguous()) == (wanted.shape, wanted.dtype, True)
        torch.testing.assert_close(got.float(), wanted.float(), rtol=1e-5, atol=1e-5)
    assert len(host.launched) == 1


def as_major(t: Tensor, major: Major) -> Tensor:
    """The same tensor with its last dimension contiguous, or with those before it."""
    if major is Major.K:
        return t.contiguous()
    if t.ndim == 2:
        return t.t().contiguous().t()
    return t.flatten(0, -2).t().contiguous().t().view(t.shape)
