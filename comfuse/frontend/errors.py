"""What the front end raises when it cannot take a function."""

from __future__ import annotations

from comfuse.errors import ComFuseError


class TraceError(ComFuseError):
    """A function, or one node of its graph, that no fused kernel can be made of.

    Attributes:
        node: the fx node at fault, e.g. ``"mm_1"``, or None where the function as a whole is.
        reason: why it cannot be taken, and what to do.
        location: ``"file:line"`` of the user's source that made the node, or None if unknown.
        target: the operator of the node, e.g. ``"aten.mm.default"``, or None.
    """

    def __init__(
        self, reason: str, *, node: str | None = None, location: str | None = None, target: str | None = None
    ) -> None:
        subject = node if target is None else f"{node} ({target})"
        about = [part for part in (subject, location and f"at {location}") if part]
        super().__init__(f"{' '.join(about)}: {reason}" if about else reason)
        self.node = node
        self.reason = reason
        self.location = location
        self.target = target
