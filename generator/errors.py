"""Errors of the pure half.  Each says what was got, what is allowed and, where it helps, what to do."""

from __future__ import annotations


class GeneratorError(ValueError):
    """Base of everything that the generator raises on purpose."""


class ArgumentError(GeneratorError):
    """An argument that a function or op cannot take.

    Attributes:
        op: the name of the function or op.
        argument: the argument's name.
        got: what was passed.
        allowed: what may be passed.
        hint: what to do about it, or an empty string.
    """

    def __init__(self, op: str, argument: str, got: str, allowed: str, hint: str = "") -> None:
        text = f"{op}: {argument} is {got}; allowed: {allowed}"
        super().__init__(f"{text}; {hint}" if hint else text)
        self.op = op
        self.argument = argument
        self.got = got
        self.allowed = allowed
        self.hint = hint


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
