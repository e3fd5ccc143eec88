"""Two GEMMs side by side with an A each, and the gradients of an MLP that computes its middle anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import fallbacks, ops
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import DType, FusedSpec, Major, Pair
from comfuse.ops import programs
from comfuse.ops.schema import GENERAL
from tests.gpu.compare import check, check_exact
from tests.gpu.support import Case, make_tensors, run_kernel, run_op
from tests.gpu.test_chain import mlp_arguments, normal
from tests.gpu.test_ops import no_fallback  # noqa: F401
from tests.gpu.two_factors import BOTH, MIDDLE, TILES
from tests.ops import gradients

pytestmark = pytest.mark.gpu

K, MN = Major.K, Major.MN
SCHEDULES = ("pingpong-128x64", "cooperative-128x128")
PAIRS = (Pair(200), Pair(72, K, MN), Pair(130, MN, MN), Pair(8, MN, K))
SIZES = ((1, 8), (129, 72), (1000, 1024))

CASES = (
    *(Case(MIDDLE, 256, schedule=s, second=Pair(256, K, MN)) for s in SCHEDULES),
    *(Case(MIDDLE, n, second=Pair(128, K, MN)) for n in (64, 1096, 4096)),
    Case(MIDDLE, 1000, DType.FP16, second=Pair(96)),
)
EXACT = (
    *(Case(BOTH, 200, schedule=s, second=pair) for s in SCHEDULES for pair in PAIRS),
    *(Case(BOTH, 256, schedule=s, cluster_n=1, second=Pair(72, K, MN)) for s in SCHEDULES),
    Case(BOTH, 200, a_major=MN, b_major=MN, second=Pair(64)),
    Case(BOTH, 1001, DType.FP16, second=Pair(136)),
)
BATCHED = tuple(Case(TILES, 256, schedule=s, batched=True, second=Pair(72, K, MN)) for s in SCHEDULES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case, kernels) -> None:
    for m, k in SIZES:
        t = make_tensors(case, m, k)
        check(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_each_product_has_its_own_factors(case: Case, kernels) -> None:
    for m, k in SIZES:
        t = make_tensors(case, m, k, integers=True)
        check_exact(t, run_kernel(kernels, t), f"M = {m}, K = {k}")


@pytest.mark.parametrize("case", BATCHED, ids=str)
def test_batches(case: Case, kernels) -> None:
    for lead, k in (((3, 1), 8), ((2, 200), 136)):
        t = make_tensors(case, lead, k, integers=True)
        check_exact(t, run_kernel(kernels, t), f"{lead}, K = {k}")


@pytest.mark.parametrize("case", [CASES[0], CASES[1], EXACT[0], EXACT[4]], ids=str)
def test_through_the_op(case: Case, kernels) -> None:
    """The second A comes first among the op's operands."""
    t = make_tensors(case, (2, 129), 72)
    check(t, run_op(kernels, t))


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_launches_are_bit_identical(case: Case, kernels) -> None:
    t = make_tensors(case, 20000, 128)
    first = run_kernel(kernels, t)
    for _ in range(10):
        assert all(torch.equal(x, y) for x, y in zip(run_kernel(kernels, t), first, strict=True))


# --- the gradients of fused_mlp and fused_b2b_gemm ---

LEAD = (3, 5, 43)
OPTIONS: dict[str, dict[str, Any]] = {
    "gelu": {"activation": "gelu"},
    "relu": {"activation": "relu"},
    "layernorm": {"activation": "silu", "norm": "layernorm"},
    "rmsnorm": {"activation": "gelu", "norm": "rmsnorm"},
}
with_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


#: By name: what COMFUSE_RECOMPUTE and COMFUSE_CHAINS are.
WAYS = {"kept": ("never", "1"), "chain": ("always", "1"), "layers": ("always", "0")}


class _Programs(torch.utils._python_dispatch.TorchDispatchMode):
    """Those that the ops run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, ChainSpec | FusedSpec] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "comfuse":
            self.found[args[0]] = programs.parse(args[0]).spec
        return func(*args, **(kwargs or {}))


def specs_ahead() -> list[ChainSpec | FusedSpec]:
    """What the calls below, and the backwards, make of the same arguments on a CPU."""
    shapes = {"x": (1, 128), "w0": (256, 128), "b0": (256,), "w1": (128, 256), "b1": (128,)}
    with _Programs() as ran, pytest.MonkeyPatch.context() as patch:
        for recompute, chains in WAYS.values():
            patch.setenv("COMFUSE_RECOMPUTE", recompute)
            patch.setenv("COMFUSE_CHAINS", chains)
            for options in OPTIONS.values():
                given = {name: torch.zeros(size).bfloat16() for name, size in shapes.items()}
                given = gradients.leaves(given | {"b1": torch.zeros(128)})
                ops.fused_mlp(**given, **options).sum().backward()
    return list(ran.found.values())


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    recompute, chains = WAYS[request.param]
    monkeypatch.setenv("COMFUSE_RECOMPUTE", recompute)
    monkeypatch.setenv("COMFUSE_CHAINS", chains)
    return str(request.param)


def in_torch(x: Tensor, w0: Tensor, b0: Tensor, w1: Tensor, b1: Tensor, **options: Any) -> tuple[Tensor, ...]:
    activation = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}[options["activation"]]
    y = F.linear(activation(F.linear(x, w0, b0)), w1, b1.to(x.dtype))
    if options.get("norm") == "layernorm":
        y = F.layer_norm(y, y.shape[-1:], eps=1e-5)
    elif options.get("norm") == "rmsnorm":
        y = F.rms_norm(y, y.shape[-1:], eps=1e-5)
    return (y,)


@with_options
@pytest.mark.usefixtures("kernels", "no_fallback", "way")
def test_gradients_against_float64(options: dict[str, Any]) -> None:
    gradients.check(
        lambda **given: (ops.fused_mlp(**given, **options),),
        lambda **given: in_torch(**given, **options),
        mlp_arguments(*LEAD),
    )


@pytest.mark.usefixtures("kernels", "no_fallback", "way")
def test_gradients_of_b2b() -> None:
    gradients.check(
        lambda **given: (ops.fused_b2b_gemm(**given, activation0="gelu"),),
        lambda **given: in_torch(**given, activation="gelu"),
        mlp_arguments(1000),
    )


@pytest.mark.usefixtures("kernels", "no_fallback", "way")
def test_gradients_without_rows() -> None:
    given = gradients.leaves(mlp_arguments(0))
    for name, g in gradients.gradients((ops.fused_mlp(**given),), given).items():
        assert g.shape == given[name].shape
        assert bool((g == 0).all())


@pytest.mark.usefixtures("kernels", "no_fallback", "way")
def test_a_second_backward_is_bit_identical() -> None:
    given = gradients.leaves(mlp_arguments(2500))
    first, second = (gradients.gradients((ops.fused_mlp(**given),), given) for _ in range(2))
    assert all(torch.equal(g, second[name]) for name, g in first.items())


@pytest.mark.usefixtures("kernels", "no_fallback", "way")
def test_a_compiled_training_step() -> None:
    given = gradients.leaves(mlp_arguments(1000))
    wanted = gradients.gradients((ops.fused_mlp(**given),), given)
    torch.compiler.reset()
    compiled = torch.compile(lambda t: ops.fused_mlp(**t), fullgraph=True)
    for name, g in gradients.gradients((compiled(given),), given).items():
        assert (g - wanted[name]).norm() <= 2.0**-7 * wanted[name].norm(), name


@pytest.mark.usefixtures("kernels")
def test_a_gradient_that_is_broadcast_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the kernel reads it, by torch: nothing is counted."""
    monkeypatch.setenv("COMFUSE_RECOMPUTE", "always")
    fallbacks.reset()
    given = gradients.leaves(mlp_arguments(1000))
    ops.fused_mlp(**given).sum().backward()
    assert bool(given["x"].grad.isfinite().all())
    assert not fallbacks.counts()


@pytest.mark.usefixtures("kernels")
def test_opcheck() -> None:
    half = DType.BF16
    spec = catalog.middle_gradient(256, 128, 128, half, b0=half, activation="gelu", sums=True)
    operands = [normal(7, 128), normal(128, 256).t(), normal(256)]
    torch.library.opcheck(GENERAL, (spec.text(), normal(7, 128), normal(256, 128), operands, []))
