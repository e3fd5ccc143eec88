"""The named ops on CUDA tensors, end to end: shapes, dtypes, optional arguments, against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import comfuse
from comfuse import fallbacks, ops
from comfuse.generator import catalog
from comfuse.generator.spec import DType, FusedSpec
from tests.gpu.compare import relative_error, tolerance
from tests.gpu.outputs import poison_allocator

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "no_fallback")]

BF16, FP16 = torch.bfloat16, torch.float16
DTYPES = {BF16: DType.BF16, FP16: DType.FP16}


@dataclass(frozen=True)
class OpCase:
    """One op with some of its optional arguments, at one N."""

    op: str  # "linear", "layernorm", "rmsnorm"
    n: int
    dtype: torch.dtype = BF16
    bias: bool = True
    residual: bool = True
    affine: bool = True
    activation: str | None = None
    position: str = "before"
    offset: float = 0.0

    def __str__(self) -> str:
        parts = [self.op, f"n{self.n}", str(self.dtype).removeprefix("torch."), self.activation]
        parts += [name for name in ("bias", "residual", "affine") if getattr(self, name)]
        parts += [
            self.position if self.op == "rmsnorm" else None,
            f"{self.offset:g}" if self.offset else None,
        ]
        return "-".join(p for p in parts if p)

    def spec(self, k: int = 72) -> FusedSpec:
        """The spec that the op makes, to build its kernel ahead."""
        d = DTYPES[self.dtype]
        options: dict[str, Any] = {"bias": d if self.bias else None, "residual": d if self.residual else None}
        if self.op == "linear":
            return catalog.linear(self.n, k, d, activation=self.activation, **options)
        affine = d if self.affine else None
        if self.op == "layernorm":
            return catalog.layernorm(self.n, k, d, ln_weight=affine, ln_bias=affine, **options)
        return catalog.rmsnorm(
            self.n,
            k,
            d,
            rms_weight=affine,
            residual_position=self.position,
            **options,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class OpInputs:
    case: OpCase
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None

    def call(self) -> Tensor:
        c = self.case
        if c.op == "linear":
            return ops.fused_gemm(self.x, self.weight, self.bias, c.activation, self.residual)
        if c.op == "layernorm":
            return ops.fused_gemm_layernorm(
                self.x, self.weight, self.bias, self.residual, self.norm_weight, self.norm_bias, 1e-5
            )
        return ops.fused_gemm_rmsnorm(
            self.x,
            self.weight,
            self.bias,
            self.residual,
            self.norm_weight,
            1e-6,
            weight_offset=c.offset,
            residual_position=c.position,
        )

    def reference(self) -> Tensor:
        """The whole result in float64."""
        c, n = self.case, self.case.n
        doubles = {k: None if (t := getattr(self, k)) is None else t.double() for k in _TENSORS}
        z = F.linear(doubles["x"], doubles["weight"], doubles["bias"])
        residual, weight = doubles["residual"], doubles["norm_weight"]
        if c.op == "linear":
            z = z if c.activation is None else _ACTIVATIONS[c.activation](z)
            return z if residual is None else z + residual
        if residual is not None and c.position == "before":
            z = z + residual
        if c.op == "layernorm":
            return F.layer_norm(z, (n,), weight, doubles["norm_bias"], 1e-5)
        y = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6)
        y = y if weight is None else y * (weight + c.offset)
        return y + residual if residual is not None and c.position == "after" else y


_TENSORS = ("x", "weight", "bias", "residual", "norm_weight", "norm_bias")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def make_inputs(case: OpCase, leading: tuple[int, ...], k: int, seed: int = 0) -> OpInputs:
    generator = torch.Generator("cuda").manual_seed(hash((leading, k, case.n, seed)) % 2**31)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", generator=generator)

    n, d = case.n, case.dtype
    norm = case.op != "linear" and case.affine
    return OpInputs(
        case,
        x=random(*leading, k).to(d),
        weight=(random(n, k) / k**0.5).to(d),
        bias=random(n).to(d) if case.bias else None,
        residual=(random(*leading, n) + 3 * random(*leading, 1)).to(d) if case.residual else None,
        norm_weight=random(n).to(d) if norm else None,
        norm_bias=random(n).to(d) if norm and case.op == "layernorm" else None,
    )


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """Whatever these tests call must run our kernel, not something else that is right as well."""
    fallbacks.reset()
    yield
    assert fallbacks.counts() == {}


def check_op(i: OpInputs) -> Tensor:
    y = i.call()
    poison_allocator(y)
    del y
    y = i.call()
    reference = i.reference()
    assert y.shape == reference.shape
    assert y.dtype == i.case.dtype
    error, allowed = relative_error(y, reference), tolerance(y.dtype, y.numel())
    assert error <= allowed, f"{tuple(i.x.shape)}: error {error:.2e}, {allowed:.2e} allowed"
    return y


CASES = (
    *(OpCase("layernorm", n) for n in (8, 64, 200, 768, 1000, 1152, 4104, 5376)),
    *(OpCase("layernorm", n, FP16) for n in (200, 1152)),
    OpCase("layernorm", 768, bias=False),
    OpCase("layernorm", 768, bias=False, residual=False, affine=False),
    OpCase("rmsnorm", 200),
    OpCase("rmsnorm", 1152, bias=False, position="after"),
    OpCase("rmsnorm", 5376, bias=False, position="after", offset=1.0),
    OpCase("rmsnorm", 1152, FP16, bias=False, position="after", offset=1.0),
    OpCase("rmsnorm", 768, bias=False, residual=False, affine=False),
    OpCase("linear", 200, bias=False, residual=False),
    OpCase("linear", 1000, FP16),
    *(OpCase("linear", 768, activation=a) for a in _ACTIVATIONS),
)


def specs_ahead() -> list[FusedSpec]:
    return [case.spec() for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: OpCase) -> None:
    for leading, k in (
        ((1,), 8),
        ((127,), 40),
        ((2, 64), 72),
        ((3, 43), 64),
        ((16344,), 72),
        ((1000,), 1024),
    ):
        check_op(make_inputs(case, leading, k))


@pytest.mark.parametrize("m", [1, 127, 128, 129, 256, 257, 1000, 16344])
@pytest.mark.parametrize("op", ["layernorm", "rmsnorm", "linear"])
def test_every_m(op: str, m: int) -> None:
    check_op(make_inputs(OpCase(op, 768, activation="relu" if op == "linear" else None), (m,), 72))


@pytest.mark.parametrize(
    "case", [OpCase("layernorm", 768), OpCase("linear", 768, activation="relu")], ids=str
)
def test_no_rows(case: OpCase) -> None:
    for leading in ((0,), (3, 0)):
        y = make_inputs(case, leading, 72).call()
        assert y.shape == (*leading, case.n)
        assert y.is_cuda


def test_mixed_operand_dtypes() -> None:
    """float32 parameters beside bf16 activations, as autocast leaves them."""
    i = make_inputs(OpCase("layernorm", 768), (257,), 72)
    mixed = OpInputs(
        i.case,
        i.x,
        i.weight,
        i.bias.float(),
        i.residual.float(),
        i.norm_weight.float(),
        i.norm_bias.to(FP16),
    )
    y = mixed.call()
    assert y.dtype == BF16
    assert relative_error(y, mixed.reference()) <= tolerance(BF16, 2**20)


def test_the_version_is_known() -> None:
    assert comfuse.__version__
