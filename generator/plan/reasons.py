"""Why shapes cannot run a program, in few words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Reason(NamedTuple):
    """Why a shape cannot run a program.

    Attributes:
        text: in words.
        times: how many times what there is would be needed, where both are numbers.
    """

    text: str
    times: float = math.inf


class _Shape(Protocol):
    @property
    def label(self) -> str: ...


class _Refusal(Protocol):
    @property
    def shape(self) -> _Shape: ...
    @property
    def constraint(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def times(self) -> float: ...


def summary(refusals: Iterable[_Refusal]) -> str:
    """Each constraint that is broken, once: of the shape that comes nearest to meeting it."""
    nearest: dict[str, _Refusal] = {}
    for refusal in refusals:
        before = nearest.get(refusal.constraint)
        if before is None or refusal.times < before.times:
            nearest[refusal.constraint] = refusal
    ascending = sorted(nearest.values(), key=lambda refusal: refusal.times)
    return "; ".join(f"{refusal.reason} ({refusal.shape.label})" for refusal in ascending)
