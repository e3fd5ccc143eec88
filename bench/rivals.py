"""Programs of others that are off by default, or off without a word: each is checked to have been what it is
named after, and fails otherwise.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.programs import Inputs, program
from bench.programs.norms import NormInputs
from bench.workloads import GraphWorkload, NormWorkload, Workload
from comfuse.build.cache import hash_text
from comfuse.build.toolkit import find_cutlass

Call = Callable[[], "Tensor | tuple[Tensor, ...]"]
Prepare = Callable[[Workload, Inputs], Call]


class SilentlyOffError(RuntimeError):
    """What a provider is named after did not take part."""


class NotInstalledError(RuntimeError):
    """The library that a provider needs cannot be imported."""


class UnsuitableError(ValueError):
    """A provider has no form of the workload: a refusal, not a failure."""


# TorchInductor with kernels that it does not try by itself.

TMA = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    "triton.enable_persistent_tma_matmul": True,
}
CUTLASS = TMA | {
    "max_autotune_gemm_backends": "ATEN,TRITON,CUTLASS",
    "cutlass.cutlass_epilogue_fusion_enabled": True,
}


def inductor_offering(kind: str, options: Mapping[str, Any], ready: Callable[[], None]) -> Prepare:
    """TorchInductor with options, which has to have timed a kernel of a kind for the workload.

    ``kind``: see :func:`kinds`.  ``ready`` raises if what the options ask for cannot take part.
    """

    def prepare(w: Workload, i: Inputs) -> Call:
        from torch._inductor import select_algorithm

        ready()
        timed: dict[str, float] = {}

        def listen(timings: Mapping[Any, float], *_: object) -> None:
            timed.update({described(choice): t for choice, t in timings.items()})

        torch._dynamo.reset()
        # A graph out of the cache was tuned by another process, and nobody would know among which kernels.
        settings = {**options, "fx_graph_cache": False}
        compiled = torch.compile(program(w), dynamic=False, fullgraph=True, options=settings)
        arguments = i.tensors()
        select_algorithm.add_feedback_saver(listen)
        try:
            compiled(*arguments)
        finally:
            select_algorithm.clear_feedback_savers()
        check_offered(kind, timed)
        return lambda: compiled(*arguments)

    return prepare


def described(choice: Any) -> str:
    """A choice of the autotuner by its class and its name."""
    inner = getattr(choice, "_wrapped", choice)  # some choices come in a wrapper that reshapes their inputs
    return f"{type(inner).__name__} {choice.name}"


def kinds(choice: str) -> set[str]:
    """Of a choice as :func:`described` gives it: "tma", "cutlass", both or none."""
    found = {"tma"} if "persistent_tma" in choice else set()
    # Before torch 2.12 the class was named after CUDA.
    return found | ({"cutlass"} if choice.startswith(("CUTLASSTemplate", "CUDATemplate")) else set())


def check_offered(kind: str, timed: Mapping[str, float]) -> None:
    """That a kernel of this kind was among those that the autotuner timed.

    Args:
        timed: milliseconds by choice, infinite where it did not compile or run.

    Raises:
        SilentlyOffError: there was none, or none that ran.
    """
    offered = {choice: t for choice, t in timed.items() if kind in kinds(choice)}
    if not offered:
        raise SilentlyOffError(f"no {kind} kernel among the {len(timed)} that the autotuner timed")
    if not any(math.isfinite(t) for t in offered.values()):
        raise SilentlyOffError(f"none of {len(offered)} {kind} kernels could be compiled and run")


def tma_is_ready() -> None:
    """That Inductor has TMA to use.

    Raises:
        SilentlyOffError: this Triton or this GPU has none, and Inductor would leave its template out.
    """
    from torch.utils._triton import has_triton_tma_device

    if not has_triton_tma_device():
        raise SilentlyOffError("this Triton or this GPU has no TMA descriptors on the device")


def cutlass_is_ready() -> None:
    """Shows Inductor the CUTLASS of the package nvidia-cutlass, unless its own setting names one.

    Raises:
        SilentlyOffError: Inductor cannot import it, and would warn and go on without.
    """
    from torch._inductor import config
    from torch._inductor.codegen.cutlass.utils import try_import_cutlass

    if not (Path(config.cutlass.cutlass_dir) / "python" / "cutlass_library").is_dir():
        config.cutlass.cutlass_dir = str(cutlass_folder())
    if not try_import_cutlass():
        raise SilentlyOffError(f"Inductor cannot import CUTLASS from {config.cutlass.cutlass_dir}")


@functools.cache
def cutlass_folder() -> Path:
    """A folder laid out like CUTLASS's repository, of links into the package.

    The same for all processes: TorchInductor remembers it in its cache, and refuses another.

    Raises:
        ToolchainError: CUTLASS is not installed.
        NotInstalledError: its Python packages are not.
    """
    headers = find_cutlass().include.parent
    folder = Path(tempfile.gettempdir()) / f"comfuse-cutlass-{hash_text(str(headers))[:12]}"
    (folder / "python").mkdir(parents=True, exist_ok=True)
    links = {name: headers / name for name in ("include", "tools")}
    for name in ("cutlass_library", "cutlass_cppgen", "pycute"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise NotInstalledError(f"the CUTLASS backend needs {name}, of the package nvidia-cutlass")
        links[f"python/{name}"] = Path(spec.origin).parent
    for name, target in links.items():
        with suppress(FileExistsError):
            (folder / name).symlink_to(target)
    return folder


# cuBLASLt's epilogues: bias, bias and ReLU, bias and the tanh form of GELU.

_ACTIVATIONS = {"bias_gelu": "gelu_tanh_approx", "bias_relu": "relu"}  # by graph, as QuACK names them


def cublaslt(w: Workload, i: Inputs) -> Call:
    """The product with its epilogue by cuBLASLt; a LayerNorm behind it by TorchInductor.

    Raises:
        UnsuitableError: the program has no bias behind its product.
        SilentlyOffError: torch ran a kernel of its own for the epilogue.
    """
    if isinstance(w, NormWorkload) and w.norm == "layernorm" and w.bias:
        assert isinstance(i, NormInputs)
        x, weight, bias = i.x, i.weight.t(), i.bias
        rest = (i.residual, i.norm_weight, i.norm_bias)
        torch._dynamo.reset()
        tail = torch.compile(_layernorm_of_sum(w.n, w.eps), dynamic=False, fullgraph=True)

        def product() -> Tensor:
            return torch.addmm(bias, x, weight)

        check_epilogue(kernels_of(product))
        return lambda: tail(product(), *rest)
    if isinstance(w, GraphWorkload) and w.graph in _ACTIVATIONS:
        x, weight, bias = i.tensors()
        gelu = _ACTIVATIONS[w.graph] != "relu"

        def activated() -> Tensor:
            return torch._addmm_activation(bias, x, weight.t(), use_gelu=gelu)

        check_epilogue(kernels_of(activated))
        return activated
    raise UnsuitableError(f"{w.name}: no bias, which cuBLASLt's epilogues begin with")


def _layernorm_of_sum(n: int, eps: float) -> Callable[..., Tensor]:
    def tail(z: Tensor, residual: Tensor | None, weight: Tensor, shift: Tensor | None) -> Tensor:
        return F.layer_norm(z if residual is None else z + residual, (n,), weight, shift, eps)

    return tail


def kernels_of(call: Callable[[], object]) -> list[str]:
    """Names of the kernels that a call launches, by torch's profiler; the call is made twice."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    events = profile.events() or []
    return [e.name for e in events if e.device_type is torch.autograd.DeviceType.CUDA]


def check_epilogue(kernels: Iterable[str]) -> None:
    """That a product's epilogue was computed by the product's kernel.

    Raises:
        SilentlyOffError: torch launched an elementwise kernel or a copy for it.
    """
    extra = [k for k in kernels if "elementwise" in k or k.startswith("Memcpy")]
    if extra:
        raise SilentlyOffError(f"torch computed the epilogue in a kernel of its own: {extra[0][:80]}")


def quack(w: Workload, i: Inputs) -> Call:
    """QuACK's product, its epilogue where it has one, its norm or softmax.

    Raises:
        NotInstalledError: it cannot be imported.
        UnsuitableError: it has no form of the program.
    """
    if isinstance(w, NormWorkload):
        if w.norm != "rmsnorm" or w.bias or w.residual or w.weight_offset:
            raise UnsuitableError(
                f"{w.name}: QuACK's RMSNorm has no bias, no residual behind it and no offset"
            )
        assert isinstance(i, NormInputs)
        library = _quack("quack")
        gemm = _quack("quack.gemm_interface").gemm
        x, weight, norm_weight = i.x, i.weight.t(), i.norm_weight
        return lambda: library.rmsnorm(gemm(x, weight), norm_weight, eps=w.eps)
    if isinstance(w, GraphWorkload) and w.graph == "softmax":
        library = _quack("quack")
        gemm = _quack("quack.gemm_interface").gemm
        x, weight = i.tensors()
        return lambda: library.softmax(gemm(x, weight.t()))
    if isinstance(w, GraphWorkload) and w.graph in _ACTIVATIONS:
        gemm_act = _quack("quack.gemm_interface").gemm_act
        x, weight, bias = i.tensors()
        activation = _ACTIVATIONS[w.graph]
        return lambda: gemm_act(x, weight.t(), bias=bias, activation=activation, store_preact=False)[1]
    raise UnsuitableError(f"{w.name}: QuACK has no such program")


def _quack(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise NotInstalledError(f"QuACK (the package quack-kernels) is not installed: {e}") from e
