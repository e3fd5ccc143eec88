"""What a phase has to evaluate so that its effects can have what they read."""

from __future__ import annotations

from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Space

_ONCE_A_ROW = (Space.COLUMN, Space.GROUP)


def values_of_tiles(spec: FusedSpec, content: int, targets: tuple[int, ...]) -> list[int]:
    """Nodes evaluated element by element to have the targets, in the order of the spec.

    Left out are ``content`` and what it alone needs, the second of two GEMMs, which is always at hand, and
    values a row or group, which come from statistics and column operands.  A column reduction is read, as an
    operand is: what it reduces is not evaluated.
    """
    all_spaces = spaces(spec)
    found: set[int] = set()
    stack = list(targets)
    while stack:
        i = stack.pop()
        if i in found or i == content or all_spaces[i] in _ONCE_A_ROW or _is_second_gemm(spec, i):
            continue
        found.add(i)
        if spec.nodes[i].op not in REDUCTIONS:
            stack.extend(spec.nodes[i].inputs)
    return sorted(found)


def _is_second_gemm(spec: FusedSpec, i: int) -> bool:
    return spec.nodes[i].op == "gemm" and spec.nodes[i].product > 0


def per_row(spec: FusedSpec, space: Space, readers: list[int], targets: tuple[int, ...]) -> tuple[int, ...]:
    """Nodes of ``space``, COLUMN or GROUP, to evaluate once for their readers and targets.

    Those that are read from outside of the space, and computed ones that several of them share.  The index
    of a row is at hand everywhere, so it is among them only where it is a target.
    """
    nodes, all_spaces = spec.nodes, spaces(spec)
    wanted = {t for t in targets if all_spaces[t] is space}
    wanted |= {
        j for i in readers for j in nodes[i].inputs if all_spaces[j] is space and nodes[j].op != "row_index"
    }
    uses: dict[int, int] = {}
    reached = set(wanted)
    for i in reversed(range(len(nodes))):
        if i not in reached or nodes[i].op not in ELEMENTWISE:
            continue
        for j in nodes[i].inputs:
            if all_spaces[j] is space:
                reached.add(j)
                uses[j] = uses.get(j, 0) + 1
    wanted.update(j for j, count in uses.items() if count > 1 and nodes[j].op in ELEMENTWISE)
    return tuple(sorted(wanted))
