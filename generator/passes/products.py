"""Products and quotients, flattened, for the passes that look for formulas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from comfuse.generator.spec import Node

_MOST_FACTORS = 8  # of the products looked at
_TOLERANCE = 1e-6  # of constants: float32 literals differ from the exact ones in the seventh digit


@dataclass
class Product:
    """A constant times nodes, over other nodes."""

    constant: float = 1.0
    numerator: list[int] = field(default_factory=list)
    denominator: list[int] = field(default_factory=list)

    def is_(self, constant: float, numerator: Iterable[int]) -> bool:
        """Whether this is a constant, up to float32 literals, times these nodes."""
        same = sorted(self.numerator) == sorted(numerator) and not self.denominator
        return same and is_close(self.constant, constant)


def flatten(nodes: Sequence[Node], factors: Iterable[int], atoms: Iterable[int] = ()) -> Product:
    """The product of ``factors``, taken apart down to ``atoms`` and what is no product."""
    result = Product()
    sides = (result.numerator, result.denominator)
    atoms = set(atoms)
    stack = [(i, 0) for i in factors]
    while stack and len(stack) + len(sides[0]) + len(sides[1]) <= _MOST_FACTORS:
        i, side = stack.pop()
        node = nodes[i]
        if i in atoms:
            sides[side].append(i)
        elif node.op == "const" and node.value:
            result.constant *= 1.0 / node.value if side else node.value
        elif node.op == "mul":
            stack += [(j, side) for j in node.inputs]
        elif node.op == "square":
            stack += [(j, side) for j in node.inputs * 2]
        elif node.op == "div":
            stack += [(node.inputs[0], side), (node.inputs[1], 1 - side)]
        elif node.op == "reciprocal":
            stack.append((node.inputs[0], 1 - side))
        else:
            sides[side].append(i)
    for i, side in stack:
        sides[side].append(i)
    return result


def is_multiple(nodes: Sequence[Node], i: int, constant: float, factors: Sequence[int]) -> bool:
    """Whether a node is ``constant`` times the product of ``factors``."""
    return flatten(nodes, [i], factors).is_(constant, factors)


def other_term(nodes: Sequence[Node], i: int, constant: float) -> int | None:
    """``y``, if the node is ``y + constant``."""
    if nodes[i].op != "add":
        return None
    a, b = nodes[i].inputs
    if nodes[b].value == constant:
        return a
    return b if nodes[a].value == constant else None


def is_close(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _TOLERANCE * abs(wanted)
