"""Checks that a spec is well formed.  Everything behind this pass may rely on it."""

from __future__ import annotations

from comfuse.generator.errors import SpecError
from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.spec import DType, FusedSpec, Node, Space


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
    if spec.n < 1 or spec.k < 1:
        raise SpecError("spec", f"N and K must be at least 1, got N = {spec.n}, K = {spec.k}")
    if spec.dtype not in (DType.BF16, DType.FP16):
        raise SpecError("spec", f"A and B must be bf16 or fp16, got {spec.dtype.value}")
    gemms = [node.name for node in spec.nodes if node.op == "gemm"]
    if len(gemms) != 1:
        raise SpecError("spec", f"a program has exactly one gemm, got {len(gemms)}: {gemms}")


def _check_operands(spec: FusedSpec) -> None:
    seen: set[str] = set()
    for operand in spec.operands:
        if not operand.name or operand.name in seen:
            raise SpecError(operand.name or "operand", "operands must have distinct, non-empty names")
        seen.add(operand.name)
        if operand.space is Space.SCALAR and operand.dtype is not DType.FP32:
            raise SpecError(operand.name, f"a scalar operand is passed as fp32, got {operand.dtype.value}")


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
    elif node.op == "gemm":
        _check_arity(node, 0)
    elif node.op == "load":
        _check_arity(node, 0)
        if node.operand is None or not 0 <= node.operand < len(spec.operands):
            raise SpecError(node.name, f"operand {node.operand} of {len(spec.operands)} does not exist")
    elif node.op == "const":
        _check_arity(node, 0)
        if node.value is None:
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
        raise SpecError(node.name, f"unknown op {node.op!r}")


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
