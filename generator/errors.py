"""Errors of the pure half.  Each says what was got, what is allowed and, where it helps, what to do."""

from __future__ import annotations


class GeneratorError(ValueError):
    """Base of everything that the generator raises on purpose."""


class SpecError(GeneratorError):
    """A spec is malformed or means nothing.

    Attributes:
        node: the name of the node (or operand, output) at fault, or ``"spec"``.
        reason: what is wrong with it.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node}: {reason}")
        self.node = node
        self.reason = reason


class PlanError(GeneratorError):
    """A valid spec that no kernel of this generator can run.

    Attributes:
        reason: why not.
        node: the name of the node at fault, if there is one.
    """

    def __init__(self, reason: str, node: str | None = None) -> None:
        super().__init__(reason if node is None else f"{node}: {reason}")
        self.reason = reason
        self.node = node
