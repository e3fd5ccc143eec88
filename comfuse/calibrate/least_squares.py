"""The constants with which the cost model comes nearest to what was measured: damped least squares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from comfuse.generator.plan.gpus import Gpu

_NOISE = 0.02  # of a time, as a share: what counts as an error of one
_TRUST = 0.7  # in the constants before, as a logarithm: what no probe moves stays where it is
_STEP = 1e-4  # of a logarithm, for derivatives
_ROUNDS = 60

Vector = list[float]


class Launch(Protocol):
    """What was timed."""

    def predicted_us(self, gpu: Gpu) -> float:
        """By the cost model alone, without the floor."""
        ...


def solve(gpu: Gpu, timed: Sequence[tuple[Launch, float]], names: Iterable[str]) -> dict[str, float]:
    """Values of the named constants, by name.

    Args:
        gpu: with its measured rates; its constants are the beginning.
        timed: launches with their microseconds.
        names: of the constants that the launches depend on; all others stay as they are.

    Minimises squared logarithms of predicted over measured, in logarithms of the constants, which keeps them
    positive (Levenberg and Marquardt).  Waves and terms that only count where they are the largest make the
    model bend, so that it goes in small steps.
    """
    known = gpu.constants.values()
    start = {name: known[name] for name in names}

    def values(x: Vector) -> dict[str, float]:
        return {name: start[name] * math.exp(v) for name, v in zip(start, x, strict=True)}

    def residuals(x: Vector) -> Vector:
        guessed = gpu.calibrated(values(x))
        errors = [math.log(probe.predicted_us(guessed) / us) / _NOISE for probe, us in timed]
        return errors + [v / _TRUST for v in x]

    return values(_minimised(residuals, [0.0] * len(start)))


def _minimised(residuals: Callable[[Vector], Vector], x: Vector) -> Vector:
    damping, r = 1e-2, residuals(x)
    for _ in range(_ROUNDS):
        columns = []  # of the Jacobian
        for i in range(len(x)):
            moved = residuals([v + _STEP * (i == j) for j, v in enumerate(x)])
            columns.append([(b - a) / _STEP for a, b in zip(r, moved, strict=True)])
        normal = [[_dot(a, b) for b in columns] for a in columns]
        gradient = [_dot(a, r) for a in columns]
        better = False
        while not better and damping < 1e8:
            damped = [
                [v * (1 + damping * (i == j)) for j, v in enumerate(row)] for i, row in enumerate(normal)
            ]
            step = _solved(damped, gradient)
            tried = [a - b for a, b in zip(x, step, strict=True)]
            new = residuals(tried)
            better = _dot(new, new) < _dot(r, r)
            damping *= 0.2 if better else 5.0
        if not better:
            break
        done = _dot(r, r) - _dot(new, new) < 1e-9 * _dot(r, r)
        x, r = tried, new
        if done:
            break
    return x


def _dot(a: Vector, b: Vector) -> float:
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def _solved(matrix: list[Vector], right: Vector) -> Vector:
    """Gaussian elimination; the matrix is positive definite, so that no pivot is zero."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    n = len(rows)
    for i in range(n):
        for below in rows[i + 1 :]:
            factor = below[i] / rows[i][i]
            below[i:] = [b - factor * a for a, b in zip(rows[i][i:], below[i:], strict=True)]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (rows[i][n] - math.fsum(rows[i][j] * x[j] for j in range(i + 1, n))) / rows[i][i]
    return x
