"""One element of each row, and the losses that are made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from comfuse.frontend import axes
from comfuse.frontend.handlers.over import Over, over
from comfuse.frontend.handlers.reductions import Handler, results
from comfuse.frontend.placing import Frame, Result, Term, Value
from comfuse.frontend.views import arguments, refuse, shape_of
from comfuse.reference import LARGEST_EXACT

if TYPE_CHECKING:
    from comfuse.frontend.lowering import Lowering

aten = torch.ops.aten


def _gather(low: Lowering, node: torch.fx.Node) -> Result:
    """The element of each row whose column a tensor of one integer a row says."""
    given = arguments(node)
    source, index = given["self"], given["index"]
    rank = len(shape_of(source))
    dim = given["dim"] % rank
    found = over(low, node, source, dim)
    one_a_row = axes.shape_of(found.kept)
    if found.axis != "row" or shape_of(index) != one_a_row:
        raise refuse(
            node,
            f"it gathers {shape_of(index)} elements along dimension {dim}; only one of each row, "
            f"{one_a_row} along the GEMM's N, can be picked",
        )
    place = low.position(found.frame, dim, node)
    chosen = low.emit("eq", place, low.value(index, found.frame, node))
    return results(found, _picked(low, found, chosen))


def _picked(low: Lowering, found: Over, chosen: Value) -> Value:
    """The element of each row where ``chosen`` is true; 0 where it never is.

    Of a log-softmax it is the element of its input, less what the whole row has in common, so that the row is
    read once.
    """
    x, common = low.logarithms.get(found.x.node, (found.x, ()))
    value = found.reduce("sum", low.emit("where", chosen, x, low.const(0.0)))
    for part in common:
        value = low.emit("sub", value, part)
    return value


def _nll_loss(low: Lowering, node: torch.fx.Node) -> Result:
    """Minus the log-probability of each row's target, weighted; 0 where the target is ``ignore_index``."""
    given = arguments(node)
    source = given["self"]
    found = over(low, node, source, -1)
    if found.axis != "row":
        raise refuse(node, "its classes must be the GEMM's N")
    if abs(given["ignore_index"]) >= LARGEST_EXACT:  # others are rounded to it
        raise refuse(node, f"ignore_index {given['ignore_index']}; allowed: less than 2^24 either way")
    target = low.value(given["target"], Frame.of(found.dropped), node)
    chosen = low.emit("eq", low.position(found.frame, len(shape_of(source)) - 1, node), target)
    counted = low.emit("ne", target, low.const(given["ignore_index"]))
    loss = low.emit("neg", _picked(low, found, chosen))
    weight = counted
    if given["weight"] is not None:
        weights = low.emit("where", chosen, low.value(given["weight"], found.frame, node), low.const(0.0))
        of_target = found.reduce("sum", weights)
        loss = low.emit("mul", loss, of_target)
        weight = low.emit("where", counted, of_target, low.const(0.0))
    loss = low.emit("where", counted, loss, low.const(0.0))
    return _reduced(low, node, found, loss, weight)


def _reduced(low: Lowering, node: torch.fx.Node, found: Over, loss: Value, weight: Value) -> Result:
    none, mean = 0, 1
    reduction = arguments(node)["reduction"]
    if reduction == none:
        return found.term(loss, node.meta["val"][0].shape), Term((low.const(0.0),), ())
    rows = found.over_rows_only()
    total = rows.reduce("sum", loss)
    if reduction != mean and not any(user.args[1] == 1 for user in node.users):
        return Term((total,), ()), None
    weights = rows.reduce("sum", weight)
    y = low.emit("div", total, weights) if reduction == mean else total
    return Term((y,), ()), Term((weights,), ())


LOSSES: dict[Any, Handler] = {
    aten.gather.default: _gather,
    aten.nll_loss_forward.default: _nll_loss,
}
