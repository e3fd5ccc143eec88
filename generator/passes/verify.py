"""Checks that a spec is well formed.  Everything behind this pass may rely on it."""

from __future__ import annotations

from comfuse.generator.errors import SpecError
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.spec import DType, FusedSpec, Node, Output, Space

_LEAVES = ("gemm", "load", "const", "row_index", "column_index", "row_count")
_OPERAND_SPACES = (Space.TILE, Space.ROW, Space.COLUMN, Space.SCALAR)
_EXACT_INDICES = 2**24  # values are float32: from here on, neighbouring columns have one number


def verify(spec: FusedSpec) -> FusedSpec:
    """The spec itself.

    Raises:
        SpecError: naming the node, operand or output at fault.
    """
    _check_gemm(spec)
    _check_operands(spec)
    for index, node in enumerate(spec.nodes):
        _check_inputs(spec, index, node)
        _check_node(spec, node)
    _check_outputs(spec)
    return spec


def _check_gemm(spec: FusedSpec) -> None:
    for pair in spec.pairs:
        if spec.n < 1 or pair.k < 1:
            raise SpecError("spec", f"N and K must be at least 1, got N = {spec.n}, K = {pair.k}")
    if spec.dtype not in (DType.BF16, DType.FP16):
        raise SpecError("spec", f"A and B must be bf16 or fp16, got {spec.dtype.value}")
    if spec.products not in (1, 2):
        raise SpecError("spec", f"a program has 1 or 2 products, got {spec.products}")
    if spec.second is not None and spec.products != 2:
        raise SpecError("spec", f"a second A needs two products, got {spec.products}")
    gemms = [node for node in spec.nodes if node.op == "gemm"]
    if sorted(node.product for node in gemms) != list(range(spec.products)):
        raise SpecError(
            "spec",
            f"a program has exactly one gemm node for each of its {spec.products} products, got"
            f" {[(node.name, node.product) for node in gemms]}",
        )
    if spec.group is not None and (spec.group < 1 or spec.n % spec.group):
        raise SpecError("spec", f"a group must divide N = {spec.n}, got {spec.group}")


def _check_operands(spec: FusedSpec) -> None:
    seen: set[str] = set()
    for operand in spec.operands:
        if not operand.name or operand.name in seen:
            raise SpecError(operand.name or "operand", "operands must have distinct, non-empty names")
        seen.add(operand.name)
        if operand.space not in _OPERAND_SPACES:
            allowed = ", ".join(space.value for space in _OPERAND_SPACES)
            raise SpecError(operand.name, f"an operand cannot be a {operand.space.value}, allowed: {allowed}")
        if operand.space is Space.SCALAR and operand.dtype is not DType.FP32:
            raise SpecError(operand.name, f"a scalar operand is passed as fp32, got {operand.dtype.value}")
        if operand.strided and operand.space is not Space.TILE:
            raise SpecError(
                operand.name, f"only a tile operand can be strided, this one is a {operand.space.value}"
            )


def _check_inputs(spec: FusedSpec, index: int, node: Node) -> None:
    if not node.name:
        raise SpecError(f"node {index}", "a node must have a name")
    for i in node.inputs:
        if not 0 <= i < index:
            raise SpecError(node.name, f"input {i} is not an earlier node (this is node {index})")
        if _needs_field(spec.nodes[i]) and node.op != "field":
            reduction = spec.nodes[i]
            fields = ", ".join(REDUCTIONS[reduction.op].fields)
            raise SpecError(node.name, f"reads {reduction.name!r} as a whole; read a field of it: {fields}")


def _needs_field(node: Node) -> bool:
    return node.op in REDUCTIONS and not REDUCTIONS[node.op].is_plain


def _check_node(spec: FusedSpec, node: Node) -> None:
    if node.op in ELEMENTWISE:
        _check_arity(node, ELEMENTWISE[node.op].arity)
    elif node.op in REDUCTIONS:
        _check_arity(node, 1)
        _check_reduction(spec, node)
    elif node.op in _LEAVES:
        _check_arity(node, 0)
        if node.op == "load" and (node.operand is None or not 0 <= node.operand < len(spec.operands)):
            raise SpecError(node.name, f"operand {node.operand} of {len(spec.operands)} does not exist")
        if node.op == "const" and node.value is None:
            raise SpecError(node.name, "a const must have a value")
    elif node.op == "field":
        _check_arity(node, 1)
        source = spec.nodes[node.inputs[0]]
        if not _needs_field(source):
            raise SpecError(node.name, f"{source.name!r} ({source.op}) has no fields")
        if node.field not in REDUCTIONS[source.op].fields:
            allowed = ", ".join(REDUCTIONS[source.op].fields)
            raise SpecError(node.name, f"field {node.field!r} does not exist, allowed: {allowed}")
    else:
        raise SpecError(node.name, f"unknown op {node.op!r}{_axes_of(node.op)}")


def _axes_of(op: str) -> str:
    """What to do about a monoid that does not run over the axis it was asked to."""
    monoid = op.partition("_")[2]
    allowed = [name for name, reduction in REDUCTIONS.items() if reduction.monoid.name == monoid]
    return f", allowed: {', '.join(allowed)}" if allowed else ""


def _check_reduction(spec: FusedSpec, node: Node) -> None:
    reduction = REDUCTIONS[node.op]
    if reduction.axis == "group" and spec.group is None:
        raise SpecError(node.name, f"{node.op} needs the spec's group, the columns that each result covers")
    if reduction.monoid.name in ("argmax", "argmin") and spec.n > _EXACT_INDICES:
        raise SpecError(node.name, f"{node.op} counts in float32, N must be at most 2^24, got {spec.n}")


def _check_arity(node: Node, arity: int) -> None:
    if len(node.inputs) != arity:
        raise SpecError(node.name, f"{node.op} takes {arity} inputs, got {len(node.inputs)}")


def _check_outputs(spec: FusedSpec) -> None:
    if not spec.outputs:
        raise SpecError("spec", "a program must have an output")
    seen: set[str] = set()
    for output in spec.outputs:
        if not output.name or output.name in seen:
            raise SpecError(output.name or "output", "outputs must have distinct, non-empty names")
        seen.add(output.name)
        if not 0 <= output.node < len(spec.nodes):
            raise SpecError(output.name, f"node {output.node} of {len(spec.nodes)} does not exist")
        if _needs_field(spec.nodes[output.node]):
            raise SpecError(output.name, f"stores {spec.nodes[output.node].name!r} as a whole; store a field")
        _check_heads(spec, output)


def _check_heads(spec: FusedSpec, output: Output) -> None:
    if output.heads is None:
        return
    if output.heads < 1 or spec.n % output.heads:
        raise SpecError(output.name, f"the head size must divide N = {spec.n}, got {output.heads}")
    if not output.strided:
        raise SpecError(output.name, "a head-split output must be marked as strided")
