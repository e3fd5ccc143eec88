"""What torch.compile is told of the ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def constant_when_traced(function: F) -> F:
    """Lets torch.compile run ``function`` while it traces, and take its result as a constant.

    What torch.compiler.assume_constant_result does, without importing the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
