"""TorchInductor without its code generator: all its passes, then torch's own operators run the graph.

Compiling C++ for each small graph is most of the time of a compile on a CPU, and what ComFuse does to a graph
is done before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx
from torch._inductor.virtualized import V


def _inner(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[[list[Any]], Any]:
    compile_fx.view_to_reshape(gm)
    placeholders = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
    with V.set_fake_mode(detect_fake_mode([*example_inputs, *placeholders])):
        compile_fx._recursive_post_grad_passes(gm, is_inference=bool(options.get("is_inference")))
    gm.recompile()

    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        return gm(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def interpreted(gm: fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
    """A backend of ``torch.compile``."""
    # As Inductor's own backend: tensors are traced with their strides, and nothing is kept in its caches.
    with torch._inductor.config.patch(force_disable_caches=True):
        return compile_fx.compile_fx(gm, example_inputs, inner_compile=_inner)
