"""What an H200's tanh.approx may give in place of tanh, as measured over its arguments."""

from __future__ import annotations

import math

import numpy as np


def largest_error(tanh: np.ndarray) -> np.ndarray:
    """The most that it is off where it should give ``tanh``, in float64.

    At most 8e-6, and 2^-11 of the result; of 1 - tanh(u) at most 2e-4 for u < 4, 1e-2 for u < 5.5, and all of
    it from u = 8 on.
    """
    rest = 1.0 - np.abs(tanh)
    part = np.select([rest > 1 - math.tanh(4.0), rest > 1 - math.tanh(5.5)], [2e-4, 1e-2], 1.0)
    return np.minimum(np.minimum(8e-6, 2.0**-11 * np.abs(tanh)), part * rest)
