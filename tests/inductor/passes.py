"""Compiling with a pass of a test's own, up to and without code generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule


def compiled(fn: Callable[..., Any], change: Callable[[Graph], None], *, dynamic: bool = False) -> Any:
    """``fn`` through TorchInductor's passes, with ``change`` on its hook before them; torch runs the graph."""
    from torch._inductor import compile_fx, config

    def backend(module: GraphModule, inputs: Any) -> Any:
        with config.patch(post_grad_custom_pre_pass=change, force_disable_caches=True):
            return compile_fx.compile_fx(
                module, inputs, inner_compile=config.patch(post_grad_custom_pre_pass=change)(_without_code)
            )

    torch._dynamo.reset()
    return torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)


def _without_code(module: GraphModule, inputs: Any, **options: Any) -> Any:
    """As compile_fx_inner, but torch runs the graph that its passes leave."""
    from torch._guards import detect_fake_mode
    from torch._inductor import compile_fx
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.virtualized import V

    compile_fx.view_to_reshape(module)
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    with V.set_fake_mode(detect_fake_mode(values)):
        post_grad_passes(module, is_inference=bool(options.get("is_inference")))
    module.recompile()

    def run(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return module(*given)

    run._boxed_call = True
    return run
