"""What counts as right: errors against float64, equality where it is possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from comfuse.generator.spec import Space
from comfuse.reference.accuracy import relative_error, tolerance, weighty
from tests.gpu.outputs import bits, picked
from tests.gpu.support import Tensors


def check(t: Tensors, outputs: Sequence[Tensor], where: str = "") -> None:
    """Outputs, in the order of Outputs.tiles, against float64 on the compared rows."""
    for name, space, output, reference in _outputs(t, outputs):
        found = picked(output, space, t.rows)
        error, allowed = relative_error(found, reference), tolerance(output.dtype, weighty(reference))
        assert error <= allowed, f"{where} {name}: error {error:.2e} against float64, {allowed:.2e} allowed"


def check_exact(t: Tensors, outputs: Sequence[Tensor], where: str = "") -> None:
    """Outputs equal to the one correct rounding of what is exact in float32; +0 equals -0."""
    for name, space, output, reference in _outputs(t, outputs):
        found = picked(output, space, t.rows)
        wanted = stored(reference, output.dtype).double()
        differ = ~((found.double() == wanted) | (found.double().isnan() & wanted.isnan()))
        if bool(differ.any()):
            at = tuple(differ.nonzero()[0].tolist())
            got, want = float(found[at].double()), float(wanted[at])
            raise AssertionError(
                f"{where} {name}: {int(differ.sum())} of {differ.numel()} wrong; at {at} {got}, not {want}"
            )


def _outputs(t: Tensors, outputs: Sequence[Tensor]) -> Iterator[tuple[str, Space, Tensor, Tensor]]:
    return zip(t.output_names, t.output_spaces, outputs, t.reference(), strict=True)


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values as a store gives them: integers and e4m3 saturate, integers truncate, NaN becomes 0."""
    if dtype is torch.bool:
        return x != 0
    if dtype is torch.float8_e4m3fn:  # torch saturates from 2.13 on
        return x.float().clamp(-448.0, 448.0).to(dtype)
    if dtype.is_floating_point:
        return x.float().to(dtype)
    info = torch.iinfo(dtype)
    inside = torch.nan_to_num(x.trunc(), nan=0.0, posinf=info.max, neginf=info.min)
    top = inside >= info.max  # 2^63 is no int64, but the nearest float64 of its largest
    return torch.where(top, info.max, inside.clamp(min=info.min).masked_fill(top, 0).to(dtype))


def same_bits(a: Any, b: Any) -> bool:
    return bool(torch.equal(bits(a), bits(b)))
