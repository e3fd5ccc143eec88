"""From a candidate to its spec: the front end reads it, with numbers in the place of symbolic rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch.fx import Node

from comfuse.frontend.arguments import Arrangement
from comfuse.frontend.errors import TraceError
from comfuse.frontend.forms import OwnForm
from comfuse.frontend.gemm import FACTORS
from comfuse.frontend.lower import lower
from comfuse.frontend.lowered import Lowered
from comfuse.frontend.names import rename
from comfuse.frontend.symbols import Table, expressions, is_symbolic, samples
from comfuse.frontend.views import refuse
from comfuse.generator.spec import FusedSpec
from comfuse.inductor.candidate import Candidate, Found
from comfuse.inductor.extract import extract


def lowered(candidate: Candidate) -> Found:
    """The spec of a candidate, and which of its inputs and outputs are what of it.

    The names in the spec do not depend on those in the graph: the same layers have the same text.

    Raises:
        TraceError: the candidate is no fused kernel.  ``node`` is the node of the graph where it has to end
            before, or one of its anchors where there is none at all.
    """
    if candidate.reading is not None:
        return Found(candidate, *candidate.reading)
    for anchor in candidate.anchors:
        _check_sizes(anchor)
    vals = [node.meta["val"] for node in (*candidate.inputs, *candidate.nodes)]
    tables = samples(vals)
    found = [_lowered(candidate, table) for table in tables]
    if any(other.spec != found[0].spec for other in found):
        raise _refused(candidate, "its kernel depends on the number of rows, which is symbolic")
    return Found(candidate, found[0], tables[0])


def _check_sizes(anchor: Node) -> None:
    """Refuses an anchor whose kernel no number of columns or inner size is known for, or that has no rows."""
    left, right = (anchor.args[i] for i in FACTORS[anchor.target])
    assert isinstance(left, Node)
    assert isinstance(right, Node)
    for name, size in zip("KN", right.meta["val"].shape[-2:], strict=True):
        if is_symbolic(size):
            raise refuse(anchor, f"its {name} = {size} is symbolic; only its rows may be")
    if any(not expressions(size) and size == 0 for size in left.meta["val"].shape):
        raise refuse(anchor, "it has no rows")


def _lowered(candidate: Candidate, table: Table) -> Lowered:
    try:
        captured = extract(candidate, table)
        found = lower(captured)
    except TraceError as e:
        if e.node in {node.name for node in candidate.nodes}:
            raise
        raise _refused(candidate, str(e)) from e
    vals = {position: node.meta["val"] for node, position in captured.arguments.items()}
    _check_inputs(candidate, found, vals)
    _check_results(candidate, found, captured.outputs)
    return found.with_specs(_without_names)


def _check_inputs(candidate: Candidate, found: Lowered, vals: dict[int, torch.Tensor]) -> None:
    """Refuses inputs that the op would have to be given copies of, or that only the host can read."""
    for position in found.scalars:
        raise _at_reader(candidate, position, "is a number in CPU memory")
    for read, arrangement in zip(found.reads, found.arrangements(), strict=True):
        position = read.position
        if read.cast is not None:
            raise _at_reader(candidate, position, f"is converted to {read.cast} before the product")
        reason = arrangement.reason_to_copy(vals[position])
        if reason:
            raise _at_reader(candidate, position, f"would have to be copied: {reason}")
        is_dynamic = is_symbolic(candidate.inputs[position].meta["val"])
        if is_dynamic and not _keeps_order(arrangement, found.batched):
            raise _at_reader(
                candidate, position, "has symbolic rows, and is read in another order or repeated"
            )


def _keeps_order(arrangement: Arrangement, batched: bool) -> bool:
    """Whether all there is to it is a reshape, or another order of whole dimensions.

    What varies over a part of the batches need not be expanded.
    """
    is_order = arrangement.order == tuple(range(len(arrangement.order)))
    return (
        arrangement.slices is None
        and (is_order or arrangement.split == arrangement.of)
        and (arrangement.repeated == arrangement.expanded or arrangement.is_of_two_levels(batched))
    )


def _check_results(candidate: Candidate, found: Lowered, outputs: Iterable[Node]) -> None:
    """Refuses results that are more than an output of the op in another shape."""
    for node, copy, form in zip(candidate.outputs, outputs, found.results, strict=True):
        if isinstance(form, OwnForm) and len(form.parts) > 1:
            raise refuse(node, "it is read as a whole, and a kernel stores the halves of its columns apart")
        if not found.is_reshaped(form) or not copy.meta["val"].is_contiguous():
            raise refuse(node, "its elements lie in another order than the rows and columns of the GEMM")


def _without_names(spec: FusedSpec) -> FusedSpec:
    """The spec with names that say what a thing is, and not what the graph calls it."""
    operands = tuple(replace(o, name=o.space.value) for o in spec.operands)
    outputs = tuple(replace(o, name=f"y{i}") for i, o in enumerate(spec.outputs))
    names = {i: node.op for i, node in enumerate(spec.nodes)}
    return rename(replace(spec, operands=operands, outputs=outputs), names)


def _at_reader(candidate: Candidate, position: int, what: str) -> TraceError:
    """The error at the first node that reads an input."""
    source = candidate.inputs[position]
    reader = next(node for node in candidate.nodes if source in node.all_input_nodes)
    return refuse(reader, f"its input {source.name} {what}")


def _refused(candidate: Candidate, reason: str) -> TraceError:
    """The error for a candidate that is refused as a whole: at its last node."""
    return refuse(candidate.nodes[-1], reason)
