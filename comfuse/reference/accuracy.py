"""How far results may be from float64: one rounding, at the store."""

from __future__ import annotations

import torch
from torch import Tensor

# Half a unit in the last place, at most, of a value.
_ROUNDING = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float32: 0.0,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}


def tolerance(dtype: torch.dtype, count: int) -> float:
    """Relative Frobenius error allowed for ``count`` elements: one rounding to ``dtype``, and float32's
    share.  Integers and bools have to be equal.

    A rounding errs by at most half a unit in the last place, 2^-8 of a bf16 value; over many values the
    root of the mean square stays below half of that.
    """
    if not dtype.is_floating_point:
        return 0.0
    return _ROUNDING[dtype] / (2 if count >= 256 else 1) + 4e-5


def weighty(x: Tensor) -> int:
    """How many elements the norm is made of: all if they are of one size, one if one dwarfs the others."""
    squares = x[x.isfinite()].square()
    return int(squares.sum().square() / squares.square().sum().clamp(min=1e-300))


def relative_error(output: Tensor, reference: Tensor) -> float:
    """Of finite values; NaN and infinities have to be the same.

    A reference of zeros gives 0 or infinity.
    """
    output, finite = output.double(), reference.isfinite()
    if not torch.equal(output.isnan(), reference.isnan()):
        return float("inf")
    if not torch.equal(output[reference.isinf()], reference[reference.isinf()]):
        return float("inf")
    error, size = (output - reference)[finite].norm(), reference[finite].norm()
    return float(error / size) if bool(size > 0) else (0.0 if bool(error == 0) else float("inf"))
