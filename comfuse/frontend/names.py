"""The names in a spec: the user's where there are any, identifiers, each used once."""

from __future__ import annotations

import dataclasses
import re

from comfuse.generator.spec import FusedSpec


def rename(spec: FusedSpec, names: dict[int, str]) -> FusedSpec:
    """The spec with ``names`` (by node index) in place of its own."""
    taken: set[str] = set()

    def unique(name: str) -> str:
        name = re.sub(r"\W", "_", name)
        number = 2
        base = name
        while name in taken:
            name = f"{base}_{number}"
            number += 1
        taken.add(name)
        return name

    operands = tuple(dataclasses.replace(o, name=unique(o.name)) for o in spec.operands)
    nodes = list(spec.nodes)
    for i, node in reversed(list(enumerate(nodes))):  # of several values called h, the last is the h
        if node.op == "load" and node.operand is not None:
            nodes[i] = dataclasses.replace(node, name=operands[node.operand].name)
        else:
            nodes[i] = dataclasses.replace(node, name=unique(names.get(i, node.name)))
    taken.clear()
    outputs = tuple(dataclasses.replace(o, name=unique(o.name)) for o in spec.outputs)
    return dataclasses.replace(spec, operands=operands, nodes=tuple(nodes), outputs=outputs)
