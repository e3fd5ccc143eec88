"""What becomes of every GEMM of a model: a table for people whose rows are data.

The model runs once with the given inputs, traced as ``torch.compile`` traces it; the pass decides on a copy
of each graph.  No kernel is compiled and no code generated, unless times are to be measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.utils import _pytree as pytree

from comfuse import fallbacks
from comfuse.inductor import capture
from comfuse.inductor.capture import Traced, module_path
from comfuse.inductor.choose import gpu_name
from comfuse.inductor.policy import Policy
from comfuse.inductor.run import regions, run
from comfuse.inductor.verdict import Verdict
from comfuse.library import tuned
from comfuse.ops import programs

_REASON_WIDTH = 100  # of a reason in the table; the row has all of it

aten = torch.ops.aten
_HIDING = {
    aten._transformer_encoder_layer_fwd.default: "nn.TransformerEncoderLayer",
    aten._native_multi_head_attention.default: "nn.MultiheadAttention",
}


@dataclass(frozen=True)
class Row:
    """One GEMM.

    Attributes:
        graph: ``"forward"`` or ``"backward"``, with a number where the model has several graphs; of a graph
            that an operator of another runs, such as one of activation checkpointing, with ``"inner"``.
        module: the path of the submodule that it belongs to, or of which it is a gradient; may be empty.
        verdict: what becomes of it.
        measured_us: the time of its region fused, in microseconds, if it was measured.
        unfused_measured_us: the time of its region in TorchInductor, measured beside it.
    """

    graph: str
    module: str
    verdict: Verdict
    measured_us: float | None = None
    unfused_measured_us: float | None = None


@dataclass(frozen=True)
class Report:
    """The answer of :func:`explain_model`; ``str()`` of it is a table.

    Attributes:
        title: what was asked about.
        rows: its GEMMs, graph by graph, in the order in which they run.
        notes: what the table does not show.
        fallbacks: what ran unfused in this process so far, with the number of times.
    """

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    fallbacks: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def fused(self) -> int:
        """The number of GEMMs that become part of a fused kernel."""
        return sum(row.verdict.fused for row in self.rows)

    @property
    def kernels(self) -> tuple[tuple[str, int | None], ...]:
        """The programs of its kernels, each with a number of rows, None where that is symbolic."""
        return tuple(dict.fromkeys(kernel for row in self.rows for kernel in row.verdict.kernels))

    def __str__(self) -> str:
        return "\n".join(_text(self))


def explain_model(
    program: nn.Module | Callable[..., Any],
    *inputs: Any,
    training: bool = False,
    measure: bool = False,
    policy: Policy | None = None,
    **keywords: Any,
) -> Report:
    """Says of each GEMM of a model or a function whether it is fused, or why it is left to TorchInductor.

    The program runs once on copies of the inputs, and backward once where ``training``.  It is left as it
    was: buffers and the state of random generators are put back, and no gradient is accumulated.  Modules
    and inputs on the meta device work too.

    Args:
        program: in the mode (``train()`` or ``eval()``) that it is to be explained in.
        inputs, keywords: what it is called with.
        training: with gradients, and the backward graphs too.
        measure: time each region fused and in TorchInductor; compiles kernels, and needs a GPU.
        policy: as for the pass.

    Raises:
        ArgumentError: times are to be measured and the inputs are not on a GPU.
        Whatever the program raises.
    """
    policy = policy or Policy()
    program = getattr(program, "_orig_mod", program)  # of a module that is compiled already
    if measure:
        from comfuse.inductor.measure import check_device

        check_device((inputs, keywords))
    graphs = _traced(program, inputs, keywords, training)
    rows: list[Row] = []
    for traced, title in zip(graphs, _titles(graphs), strict=True):
        found = _rows(traced, title, policy)
        rows += _timed(traced, found, policy) if measure else found
    name = getattr(program, "__name__", type(program).__name__)
    notes = (*_notes(graphs, training), *_measured(rows, gpu_name(policy)))
    return Report(name, tuple(rows), notes, fallbacks.counts())


def _traced(program: Any, inputs: Sequence[Any], keywords: dict[str, Any], training: bool) -> list[Traced]:
    inputs, keywords = pytree.tree_map_only(Tensor, _copied, (tuple(inputs), keywords))
    with _kept(program, inputs), torch.set_grad_enabled(training), capture.tracing() as (compiled, graphs):
        result = compiled(program)(*inputs, **keywords)
        if training:
            _backward(result, program, (inputs, keywords))
    return graphs


def _copied(x: Tensor) -> Tensor:
    copy = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad)
    marks = {name: mark for name, mark in vars(x).items() if name.startswith("_dynamo")}  # of dynamic sizes
    vars(copy).update(marks)
    return copy


@contextmanager
def _kept(program: Any, inputs: Sequence[Any]) -> Iterator[None]:
    """Puts buffers and random generators back in the end."""
    buffers = {b: b.detach().clone() for b in program.buffers()} if isinstance(program, nn.Module) else {}
    tensors = [x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor)]
    devices = {x.device.index for x in (*tensors, *buffers) if x.is_cuda}
    with torch.random.fork_rng(sorted(devices)):
        yield
    with torch.no_grad():
        for buffer, before in buffers.items():
            buffer.copy_(before)


def _backward(result: Any, program: Any, arguments: Any) -> None:
    """One backward pass, which accumulates nothing."""
    outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad]
    leaves = [x for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor) and x.requires_grad]
    if isinstance(program, nn.Module):
        leaves += [p for p in program.parameters() if p.requires_grad]
    if outputs and leaves:
        ones = [torch.ones_like(x) for x in outputs]
        torch.autograd.grad(outputs, leaves, ones, allow_unused=True)


def _titles(graphs: Sequence[Traced]) -> list[str]:
    """What the rows of each graph say: a number only where there are several of a kind."""
    kinds = [
        f"{'inner ' if traced.nested else ''}{'backward' if traced.backward else 'forward'}"
        for traced in graphs
    ]
    return [
        f"{kind} {1 + kinds[:i].count(kind)}" if kinds.count(kind) > 1 else kind
        for i, kind in enumerate(kinds)
    ]


def _rows(traced: Traced, title: str, policy: Policy) -> list[Row]:
    nodes = {node.name: node for node in traced.module.graph.nodes}
    order = {name: i for i, name in enumerate(nodes)}
    copy = _copy(traced.module)
    with traced.fake_mode():
        verdicts = run(copy.graph, policy, build=False)
    verdicts.sort(key=lambda v: order[v.anchor])
    return [Row(title, module_path(nodes[verdict.anchor]), verdict) for verdict in verdicts]


def _timed(traced: Traced, rows: Sequence[Row], policy: Policy) -> list[Row]:
    """The rows of a graph, with times for those that have a region."""
    from comfuse.inductor.measure import times

    copy = _copy(traced.module)
    with traced.fake_mode():
        of_anchor = {anchor.name: c for c in regions(copy.graph, policy) for anchor in c.anchors}
    with_region = [row for row in rows if row.verdict.spec]
    # Two GEMMs side by side are one region.
    measured = {c: times(c) for c in dict.fromkeys(of_anchor[row.verdict.anchor] for row in with_region)}
    return [
        replace(row, **measured[of_anchor[row.verdict.anchor]]) if row.verdict.spec else row for row in rows
    ]


def _copy(module: GraphModule) -> GraphModule:
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return GraphModule(module, graph)


def _notes(graphs: Sequence[Traced], training: bool) -> Iterator[str]:
    for target, module in _HIDING.items():
        if any(node.target is target for traced in graphs for node in traced.module.graph.nodes):
            yield (
                f"{module} runs its fast path, one operator that hides its GEMMs; "
                "torch.backends.mha.set_fastpath_enabled(False) before torch.compile shows them"
            )
    forward = sum(not traced.backward and not traced.nested for traced in graphs)
    if forward > 1:
        yield f"TorchDynamo breaks it into {forward} graphs; nothing is fused across them"
    if not forward:
        yield "TorchDynamo traces no graph of it"
    if training and not any(traced.backward for traced in graphs):
        yield "nothing in it needs a gradient: there is no backward graph"


def _measured(rows: Sequence[Row], gpu: str) -> Iterator[str]:
    """How many kernels of what is fused were chosen by measurement, if any was."""
    fused = dict.fromkeys(kernel for row in rows for kernel in row.verdict.kernels)
    plans = [tuned.plan(programs.parse(text).spec, gpu, m) for text, m in fused if m is not None]
    count = sum(map(tuned.is_measured, plans))
    if count:
        yield f"{count} of {len(plans)} kernels were chosen by measurement, the rest by the cost model"


# --- for people -----------------------------------------------------------------------------------------


def _text(report: Report) -> list[str]:
    count = len(report.rows)
    lines = [f"{report.title}: {count} GEMM{'' if count == 1 else 's'}, {report.fused} fused"]
    if report.rows:
        table = [_HEADER, *(_cells(row) for row in report.rows)]
        shown = [i for i in range(len(_HEADER)) if any(line[i] for line in table[1:])]
        widths = {i: max(len(line[i]) for line in table) for i in shown}
        lines += ["", *("  " + "  ".join(line[i].ljust(widths[i]) for i in shown).rstrip() for line in table)]
    if report.notes:
        lines += ["", *report.notes]
    if report.fallbacks:
        lines += ["", "not fused at run time in this process so far"]
        lines += [f"  {n} x {where}: {_line(reason)}" for (where, reason), n in report.fallbacks.items()]
    return lines


_HEADER = (
    "graph", "module", "where", "M, N, K", "ops", "reductions", "outputs", "fused us", "Inductor us",
    "measured us", "Inductor measured us", "verdict",
)  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    v = row.verdict
    return (
        row.graph,
        row.module,
        _short(v.location) if v.location else "",
        ", ".join(map(str, v.shape)),
        str(v.nodes),
        str(v.reductions),
        str(v.outputs),
        _us(v.predicted_us),
        _us(v.unfused_us),
        _us(row.measured_us),
        _us(row.unfused_measured_us),
        _answer(v),
    )


def _answer(v: Verdict) -> str:
    if v.chain:
        return f"fused (chain with {', '.join(v.chain)})"
    answer = "fused" if v.fused else f"left: {_line(v.reason)}"
    return f"{answer}; {_line(v.apart)}" if v.apart else answer


def _us(time: float | None) -> str:
    return "" if time is None else f"{time:.1f}"


def _short(location: str) -> str:
    """``file:line`` with the last folder of its path."""
    return "/".join(location.rsplit("/", 2)[-2:])


def _line(reason: str) -> str:
    """A reason as part of one line."""
    return textwrap.shorten(reason, _REASON_WIDTH, placeholder=" ...")
