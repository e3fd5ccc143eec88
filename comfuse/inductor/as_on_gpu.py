"""Graphs of programs without memory, as TorchInductor would get them from a GPU.

On the meta device torch writes attention out as products and a softmax, and TorchInductor's passes over the
joint graph drop what its results depend on, and leave random numbers to torch.  All of that would hide what a
GPU computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
prims = torch.ops.prims

_DRAWS = {aten.rand.default: "rand", aten.randn.default: "randn"}
_TORCHS = F.scaled_dot_product_attention
_HALVES = (torch.bfloat16, torch.float16)
_CUDNN_WIDTH, _FLASH_WIDTH = 128, 256  # the widest heads that they take


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """For the time in which torch traces a program and TorchInductor's passes run."""
    config = torch._inductor.config
    before, after = config.joint_custom_pre_pass, config.joint_custom_post_pass
    passes = {
        "joint_custom_pre_pass": in_turn(before, _hide_results),
        "joint_custom_post_pass": in_turn(_show_results, _draw, after),
    }
    given = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = _attention  # multi_head_attention_forward hides it from a mode
    try:
        with _Attention(), config.patch(passes):
            yield
    finally:
        F.scaled_dot_product_attention = given


def in_turn(*several: Any) -> Callable[[Graph], None]:
    """Passes one after the other, where TorchInductor of torch 2.11 takes a single one."""
    flat = [one for x in several for one in (x if isinstance(x, list | tuple) else (x,)) if one is not None]

    def run(graph: Graph) -> None:
        for one in flat:
            one(graph)

    return run


# --- results --------------------------------------------------------------------------------------------


def _result(x: Any) -> Any:
    """Stands in a graph for a result whose value TorchInductor is not to see."""
    return x


def _hide_results(graph: Graph) -> None:
    """TorchInductor makes an empty tensor of a result without memory, and drops all that leads to it."""
    output = graph.output_node()
    with graph.inserting_before(output):
        output.args = torch.fx.map_arg(output.args, lambda node: graph.call_function(_result, (node,)))


def _show_results(graph: Graph) -> None:
    for node in [node for node in graph.nodes if node.target is _result]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


# --- random numbers -------------------------------------------------------------------------------------


def _draw(graph: Graph) -> None:
    """Random numbers as TorchInductor draws them: in float32, in the kernel that reads them."""
    from torch._inductor import inductor_prims

    found = [node for node in graph.nodes if node.target in _DRAWS and node.meta["val"].is_meta]
    if not found:
        return
    with graph.inserting_before(found[0]):
        seeds = graph.call_function(inductor_prims.seeds, (len(found), found[0].meta["val"].device))
    seeds.meta["val"] = found[0].meta["val"].new_empty(len(found), dtype=torch.int64)
    for number, node in enumerate(found):
        val = node.meta["val"]
        with graph.inserting_before(node):
            seed = graph.call_function(inductor_prims.lookup_seed, (seeds, number))
            drawn = graph.call_function(inductor_prims.random, (node.args[0], seed, _DRAWS[node.target]))
            cast = graph.call_function(prims.convert_element_type.default, (drawn, val.dtype))
        seed.meta["val"] = val.new_empty((), dtype=torch.int64)
        drawn.meta = {**node.meta, "val": val.float()}
        cast.meta = node.meta
        node.replace_all_uses_with(cast)
        graph.erase_node(node)


# --- attention ------------------------------------------------------------------------------------------


class _Attention(TorchFunctionMode):
    """Attention of tensors without memory as the operator that torch chooses for a Hopper GPU."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is _TORCHS:
            return _attention(*args, **given)
        return func(*args, **given)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As torch's, in the order in which it prefers its operators on sm_90: cuDNN, flash, memory-efficient."""
    width = max(query.shape[-1], value.shape[-1])
    takes = query.is_meta and query.dim() == 4 and query.dtype in _HALVES and width % 8 == 0
    if not takes or width > _FLASH_WIDTH:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return _TORCHS(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if width > _CUDNN_WIDTH and attn_mask is None:
        flash = aten._scaled_dot_product_flash_attention.default
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]
    needs_sums = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    if width > _CUDNN_WIDTH:
        groups = query.shape[1] // key.shape[1] if enable_gqa else 1
        key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
        run = aten._scaled_dot_product_efficient_attention.default
    else:
        run = aten._scaled_dot_product_cudnn_attention.default
    return run(query, key, value, bias, needs_sums, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -torch.inf)
    return mask.expand(*query.shape[:2], query.shape[2], key.shape[2])
