"""The op table: one row for each elementwise op and one for each monoid that values are reduced by.

A row says everything that the generator knows of an op.  To add one: a row here, a functor of the same name
in ``csrc/include/comfuse/functors/`` (a monoid: in ``sm90/``), a torch function in ``comfuse/reference/``.
"""

from __future__ import annotations

from comfuse.generator.ops.elementwise import ELEMENTWISE, FAST, Elementwise
from comfuse.generator.ops.names import camel_case
from comfuse.generator.ops.reductions import AXES, MONOIDS, REDUCTIONS, Axis, Monoid, Reduction

# Nodes that compute nothing from other values; "field" picks one value out of a reduction with several.
STRUCTURAL: tuple[str, ...] = ("gemm", "load", "const", "field", "row_index", "column_index", "row_count")

__all__ = [
    "AXES",
    "ELEMENTWISE",
    "FAST",
    "MONOIDS",
    "REDUCTIONS",
    "STRUCTURAL",
    "Axis",
    "Elementwise",
    "Monoid",
    "Reduction",
    "camel_case",
]
