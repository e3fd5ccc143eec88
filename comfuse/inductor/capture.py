"""The graphs that TorchInductor makes of a program, as a pass on its hook would see them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from comfuse.inductor.as_on_gpu import as_on_gpu, in_turn
from comfuse.inductor.nodes import is_anchor
from comfuse.inductor.save import save_sums

_ROOT = "L['program']"  # how paths of modules begin
_STACK = "comfuse_module_stack"


@dataclass(frozen=True)
class Traced:
    """One graph.

    Attributes:
        module: the graph at the hook ``post_grad_custom_pre_pass``.
        backward: whether it computes gradients.
        nested: whether an operator of another graph runs it, such as one of activation checkpointing.
    """

    module: GraphModule
    backward: bool = False
    nested: bool = False

    def fake_mode(self) -> AbstractContextManager[Any]:
        """The mode that its values were traced in, as TorchInductor has it set while it runs passes."""
        from torch._guards import detect_fake_mode
        from torch._inductor.virtualized import V

        vals = [node.meta.get("val") for node in self.module.graph.nodes if node.op == "placeholder"]
        return V.set_fake_mode(detect_fake_mode(vals))


class _Stop(Exception):
    """Ends TorchInductor's passes at the hook."""


@contextmanager
def tracing() -> Iterator[tuple[Callable[..., Any], list[Traced]]]:
    """Gives what compiles a program, and the list of the graphs that its runs then leave.

    Nothing is generated: torch's own operators run each graph.  Backward graphs are traced as long as the
    context is open.
    """
    graphs: list[Traced] = []

    def inner(module: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        for part in module.modules():
            if isinstance(part, GraphModule):
                backward, nested = bool(options.get("is_backward")), part is not module
                graphs.append(Traced(_at_the_hook(part, options), backward, nested))
        return _boxed(module)

    def backend(module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        without_memory = any(isinstance(x, torch.Tensor) and x.is_meta for x in inputs)
        with as_on_gpu() if without_memory else nullcontext():
            return compile_fx(module, inputs, inner_compile=inner)

    def compiled(program: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return program(*args, **kwargs)

        # TorchDynamo keeps its code by code object: this one is its own.  What it remembers of sizes it keeps
        # by place in the source: only what is marked as dynamic is.
        call.__code__ = call.__code__.replace()
        return torch.compile(call, backend=backend, dynamic=False)

    config = torch._inductor.config
    passes = {
        "joint_custom_pre_pass": in_turn(_keep_stacks, config.joint_custom_pre_pass),
        "joint_custom_post_pass": in_turn(config.joint_custom_post_pass, save_sums),
    }
    with torch._functorch.config.patch(enable_autograd_cache=False), config.patch(passes):
        yield compiled, graphs


def _keep_stacks(graph: Graph) -> None:
    """TorchInductor gives a GEMM the metadata of what computes nothing behind it, and removes that."""
    for node in graph.nodes:
        if is_anchor(node):
            node.meta[_STACK] = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}


def module_path(anchor: Node) -> str:
    """The path of the innermost module behind a GEMM."""
    path = next((path for path, _ in reversed(anchor.meta.get(_STACK, {}).values())), "")
    inside = re.sub(r"\._modules\['(\w+)'\]", r".\1", path).removeprefix(_ROOT)
    return inside.strip(".")


def _at_the_hook(module: GraphModule, options: dict[str, Any]) -> GraphModule:
    """A copy of a graph, after what TorchInductor does to it before the hook."""
    from torch._inductor import compile_fx
    from torch._inductor.fx_passes.post_grad import post_grad_passes

    copy = GraphModule(module, module.graph.__deepcopy__())
    traced = Traced(copy)

    def stop(graph: Graph) -> None:
        raise _Stop

    compile_fx.view_to_reshape(copy)
    with traced.fake_mode(), torch._inductor.config.patch(post_grad_custom_pre_pass=stop):
        try:
            post_grad_passes(copy, is_inference=bool(options.get("is_inference")))
        except _Stop:
            return copy
    raise AssertionError("TorchInductor has no hook before its passes")


def _boxed(module: GraphModule) -> Callable[[list[Any]], Any]:
    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        return module(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
