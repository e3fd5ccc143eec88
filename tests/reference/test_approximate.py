"""How far chains are off whose activations come from tanh.approx.

As the kernels compute them, but for the order of sums: the middle in float32 with the worst that an H200's
tanh.approx may give, rounded to bfloat16 for the second GEMM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tanh_approx import largest_error

M, K, H, N = 256, 64, 512, 64
HALF_ULP = 2.0**-8  # the most that a rounding to bfloat16 is off, of the value

Unary = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """``h + h tanh(u)``, which torch has as ``exact``, with ``h = x / 2``.

    ``u`` is of ``part`` of x.  The kernel adds up part + part tanh(u); what is left of it waits behind the
    second GEMM.  ``absolute`` is what the op table says of the error, ``of_h`` as a part of h.
    """

    exact: Unary
    u: Unary
    part: float = 0.5
    absolute: float = 0.0
    of_h: float = 0.0

    @property
    def factor(self) -> float:
        """What what is handed on is still to be times."""
        return 0.5 / self.part

    def handed_on(self, x: Tensor, signs: Tensor) -> Tensor:
        part = self.part * x
        tanh = self.u(part).double().tanh()
        tanh += signs * torch.from_numpy(largest_error(tanh.numpy()))
        return torch.addcmul(part, part, tanh.float())

    def largest_error(self, x: Tensor) -> Tensor:
        return self.absolute + self.of_h * 0.5 * x.abs()


def _u_of_gelu(a: Tensor) -> Tensor:
    t = (a * a).clamp(max=1.0)
    return a * ((-0.360015845 * t + 2.36838545) * t + 3.19002988)


ACTIVATIONS = {
    "gelu": Activation(F.gelu, _u_of_gelu, part=0.25, absolute=2 * 2.1e-5),
    "gelu_tanh": Activation(
        lambda x: F.gelu(x, approximate="tanh"),
        lambda h: h * (2 * 0.79788456 + 8 * 0.79788456 * 0.044715 * h * h),
        of_h=9e-6,
    ),
    "silu": Activation(F.silu, lambda h: h, of_h=9e-6),
    "quick_gelu": Activation(lambda x: x * torch.sigmoid(1.702 * x), lambda h: 1.702 * h, of_h=9e-6),
}


class Chain:
    """``activation(a @ w0.T + bias) @ w1.T`` where what is activated has this mean and deviation."""

    def __init__(self, name: str, mean: float, deviation: float, *, one_sign: bool) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*size: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(size, generator=generator) * scale).bfloat16()

        activation = ACTIVATIONS[name]
        self.a, self.w0 = random(M, K), random(H, K, scale=deviation * K**-0.5)
        self.w1 = random(N, H, scale=H**-0.5)
        if one_sign:
            self.w1 = self.w1.abs()
        self.bias = torch.full((H,), mean).bfloat16()
        self.x = F.linear(self.a.double(), self.w0.double(), self.bias.double())
        self.p = activation.exact(self.x)
        self.exact = F.linear(self.p, self.w1.double())
        eager = F.linear(activation.exact(F.linear(self.a, self.w0, self.bias)), self.w1)
        self.eagers = (eager.double() - self.exact).abs()
        signs = torch.randint(0, 2, self.x.shape, generator=generator) * 2 - 1
        handed = activation.handed_on(self.x.float(), signs).bfloat16()
        y = activation.factor * F.linear(handed.float(), self.w1.float())
        self.errors = (y.bfloat16().double() - self.exact).abs()
        self.activation_error = activation.largest_error(self.x)


# Mean and deviation of what is activated, and whether the weights behind it have one sign, so that errors of
# one sign add up.
CASES = [
    (name, mean, deviation, one_sign)
    for name in ACTIVATIONS
    for mean, deviation in ((0.0, 1.0), (0.0, 3.0), (0.0, 0.01), (-2.0, 1.0), (-4.0, 1.0))
    for one_sign in (False, True)
]
# Activations of nearly all of it are small, and have an absolute error: GELU's polynomial is off in one
# direction for x < -4, and tanh.approx is 1 from 8 on.  Here the error is 2 to 100 times that of eager.
BEYOND = [
    *((name, -5.0, 0.5, one_sign) for name in ("gelu", "gelu_tanh") for one_sign in (False, True)),
    *((name, -8.0, 1.0, one_sign) for name in ("gelu", "quick_gelu") for one_sign in (False, True)),
]


@pytest.mark.parametrize("name, mean, deviation, one_sign", [case for case in CASES if case not in BEYOND])
def test_error_beside_that_of_eager(name: str, mean: float, deviation: float, one_sign: bool) -> None:
    chain = Chain(name, mean, deviation, one_sign=one_sign)
    assert chain.errors.norm() <= 2 * chain.eagers.norm()


@pytest.mark.parametrize("name, mean, deviation, one_sign", BEYOND)
def test_where_twice_eagers_error_does_not_hold(
    name: str, mean: float, deviation: float, one_sign: bool
) -> None:
    """Should it hold one day, the case belongs to the test above."""
    chain = Chain(name, mean, deviation, one_sign=one_sign)
    assert chain.errors.norm() > 2 * chain.eagers.norm()


@pytest.mark.parametrize("name, mean, deviation, one_sign", list(dict.fromkeys([*CASES, *BEYOND])))
def test_error_is_what_the_activation_and_two_roundings_give(
    name: str, mean: float, deviation: float, one_sign: bool
) -> None:
    """The absolute bound of each element, which holds everywhere."""
    chain = Chain(name, mean, deviation, one_sign=one_sign)
    of_middle = HALF_ULP * chain.p.abs() + (1 + HALF_ULP) * chain.activation_error + 1e-6 * chain.x.abs()
    bound = F.linear(of_middle, chain.w1.double().abs())
    bound += HALF_ULP * (chain.exact.abs() + bound)
    assert (chain.errors <= bound).all()
