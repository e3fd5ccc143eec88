"""In which order candidates are timed, round by round."""

from __future__ import annotations

from collections.abc import Sequence


def order(names: Sequence[str], number: int) -> list[str]:
    """The order of a round, of any number: over 2n rounds of n names each follows each other one twice.

    Behind what drew little power a GPU finds a higher clock, so none may always follow the same one (E. J.
    Williams, "Experimental designs balanced for the estimation of residual effects of treatments", 1949).
    """
    n = len(names)
    zigzag = [(i + 1) // 2 if i % 2 else (n - i // 2) % n for i in range(n)]  # 0, 1, n - 1, 2, n - 2, ...
    row = [names[(place + number) % n] for place in zigzag]
    return row[::-1] if number // n % 2 else row
