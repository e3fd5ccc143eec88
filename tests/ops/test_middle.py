"""Gradients of two layers back to back whose middle is computed anew in the backward, on CPU tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from comfuse import fallbacks, ops
from comfuse.errors import GradientError, PlanError
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan.program import plan
from comfuse.generator.spec import DType, FusedSpec, Major
from comfuse.ops import programs
from comfuse.ops.autograd import ways
from comfuse.ops.schema import GENERAL
from tests.ops.gradients import check, gradients, leaves
from tests.ops.test_mlp import BF16, CASES, FP16, FP32, Case, H, K, N

pytestmark = pytest.mark.usefixtures("nothing_falls_back")

KEEPING = ("gated", "gated all", "b2b all")  # what has no other way
ANEW = [case for case in CASES if case.name not in KEEPING]
every_case = pytest.mark.parametrize("case", ANEW, ids=str)
LEAD = (3, 14)


@pytest.fixture(params=["chain", "layers"])
def anew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_RECOMPUTE", "always")
    if request.param == "layers":
        monkeypatch.setenv("COMFUSE_CHAINS", "0")


class _Regions(torch.utils._python_dispatch.TorchDispatchMode):
    """The programs that run."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "comfuse":
            self.specs.append(programs.parse(args[0]).spec)
        return func(*args, **(kwargs or {}))

    @property
    def outputs(self) -> list[list[str]]:
        """Names, of those with an A each."""
        found = [s for s in self.specs if isinstance(s, FusedSpec) and s.second is not None]
        return [[o.name for o in spec.outputs] for spec in found]


def called(case: Case) -> Callable[..., tuple[Tensor, ...]]:
    return lambda **given: (case(given),)


@every_case
@pytest.mark.parametrize("dtype, other", [(BF16, BF16), (FP16, FP32)])
@pytest.mark.usefixtures("anew")
def test_numbers(case: Case, dtype: torch.dtype, other: torch.dtype) -> None:
    arguments = case.arguments(LEAD, dtype, other)
    with _Regions() as regions:
        ours = leaves(arguments)
        found = gradients((case(ours),), ours)
    assert len(regions.outputs) == 1
    exact = leaves(arguments, torch.float64)
    wanted = gradients((case.expected(**exact, **case.options),), exact)
    assert found.keys() == wanted.keys()
    for name, g in found.items():
        # Each of some ten roundings on the way back has a share.
        assert (g - wanted[name]).norm() <= 3e-2 * wanted[name].norm(), name
    assert not fallbacks.counts()


@pytest.mark.parametrize("activation", catalog.DERIVATIVES)
@pytest.mark.usefixtures("anew")
def test_every_activation_is_as_exact_as_eager(activation: str | None) -> None:
    mlp = CASES[1]
    case = Case("mlp", mlp.op, mlp.expected, ("b0", "b1", "residual"), {"activation": activation})

    def expected(**given: Any) -> tuple[Tensor, ...]:
        return (case.expected(**given, **case.options),)

    check(called(case), expected, case.arguments(LEAD, BF16, BF16))


@every_case
@pytest.mark.parametrize("lead", [(), (1, 1, 5), (0,), (2, 0, 3)])
@pytest.mark.usefixtures("anew")
def test_leading_shapes(case: Case, lead: tuple[int, ...]) -> None:
    arguments = case.arguments(lead, BF16, BF16)
    ours, exact = leaves(arguments), leaves(arguments, torch.float64)
    found = gradients((case(ours),), ours)
    wanted = gradients((case.expected(**exact, **case.options),), exact)
    for name, g in found.items():
        assert g.shape == wanted[name].shape
        assert (g - wanted[name]).norm() <= 3e-2 * wanted[name].norm(), name


@every_case
@pytest.mark.usefixtures("anew")
def test_what_is_not_asked_is_not_computed(case: Case) -> None:
    arguments = case.arguments(LEAD, BF16, BF16)
    names = list(arguments)
    given = leaves(arguments)
    everything = gradients((case(given),), given)
    for count in {1, len(names) - 1}:
        for wanted in itertools.combinations(names, count):
            given = leaves(arguments, wanted=wanted)
            with _Regions() as regions:
                found = gradients((case(given),), given)
            for name in wanted:
                assert torch.equal(found[name], everything[name]), (name, wanted)
            before = {"x", "w0", "b0"} & set(wanted)
            outputs = ["d_pre", *["middle"] * ("w1" in wanted), *["d_b0"] * ("b0" in wanted)]
            assert regions.outputs == ([outputs] if before else [])


@every_case
@pytest.mark.usefixtures("anew")
def test_nothing_is_kept_of_the_middle(case: Case) -> None:
    arguments = leaves(case.arguments(LEAD, BF16, BF16))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        case(arguments)
    assert all(t.shape[-1] != H or t.shape[:-1] != torch.Size(LEAD) for t in kept)
    behind = [t for t in kept if t.shape == torch.Size((*LEAD, N)) and t is not arguments.get("residual")]
    assert len(behind) == (case.options.get("norm") is not None)


@pytest.mark.parametrize("case", [CASES[0], CASES[7], CASES[9]], ids=str)
@pytest.mark.usefixtures("anew")
def test_no_second_derivative(case: Case) -> None:
    arguments = leaves(case.arguments((3,), BF16, BF16))
    y = case(arguments)
    (grad,) = torch.autograd.grad(y.float().square().sum(), arguments["x"], create_graph=True)
    name = "fused_b2b_gemm" if case.name == "b2b" else "fused_mlp"
    with pytest.raises(GradientError, match=f"{name}: its gradient has no gradient"):
        grad.float().sum().backward()


@every_case
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.usefixtures("anew")
def test_compiled(case: Case, dynamic: bool) -> None:
    arguments = case.arguments(LEAD, BF16, BF16)
    given = leaves(arguments)
    wanted = gradients((case(given),), given)
    torch.compiler.reset()
    second = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        texts = [n.args[0] for n in module.graph.nodes if "comfuse" in str(n.target)]
        second.extend(text for text in texts if programs.parse(text).links[0].second is not None)
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=compiler)
    compiled = torch.compile(lambda t: case(t), fullgraph=True, dynamic=dynamic, backend=backend)
    found = gradients((compiled(given),), given)
    assert len(second) == 1
    for name, g in found.items():
        assert (g - wanted[name]).norm() <= 2.0**-7 * wanted[name].norm(), name


@pytest.mark.usefixtures("anew")
def test_tensors_that_are_not_contiguous() -> None:
    """A weight is read as it lies; a gradient that has no strides of its own is copied."""
    arguments = CASES[1].arguments((4, 6), BF16, BF16)
    other = {name: t.t().contiguous().t() if t.ndim == 2 else t for name, t in arguments.items()}
    other["x"] = other["x"].transpose(0, 1).contiguous().transpose(0, 1)
    found = []
    for given in (leaves(arguments), {name: t.detach().requires_grad_() for name, t in other.items()}):
        CASES[1](given).sum().backward()
        found.append({name: t.grad for name, t in given.items()})
    for name, g in found[0].items():
        torch.testing.assert_close(found[1][name], g, rtol=2.0**-6, atol=2.0**-6)


@pytest.mark.parametrize("bias", [None, DType.FP32])
@pytest.mark.parametrize("w1_major", Major)
def test_opcheck_of_the_kernel(bias: DType | None, w1_major: Major) -> None:
    spec = catalog.middle_gradient(
        H, K, N, DType.BF16, b0=bias, activation="gelu", w1_major=w1_major, sums=bias is not None
    )
    x, d = torch.randn(2, 3, K).to(BF16), torch.randn(2, 3, N).to(BF16)
    rows = [] if bias is None else [torch.randn(H)]
    operands = [d, torch.randn(H, N).to(BF16), *rows]
    torch.library.opcheck(GENERAL, (spec.text(), x, torch.randn(H, K).to(BF16), operands, []))


# --- which way ---


def predicted(n: int, k: int, h: int, activation: str, m: int, *, chains: bool = True) -> ways.Predicted:
    chain = catalog.mlp(n, k, h, DType.BF16, b0=DType.BF16, activation=activation)
    return ways.predicted(chain, activation, m, "h200", chains=chains)


def test_the_cost_model_chooses() -> None:
    wide = predicted(128, 128, 512, "silu", 327680)
    assert wide.way == ways.ANEW_CHAIN
    long = predicted(1024, 1024, 4096, "gelu", 16384)
    assert math.isinf(long.chain)
    assert (long.way, long.way_anew) == (ways.KEPT, ways.ANEW_LAYERS)
    none = predicted(1024, 1024, 4096, "exp", 16384)
    assert (none.anew, none.way_anew) == (math.inf, ways.KEPT)
    turned_off = predicted(128, 128, 512, "silu", 327680, chains=False)
    assert (turned_off.chain, turned_off.way_anew) == (math.inf, ways.ANEW_LAYERS)


@pytest.mark.parametrize(
    "setting, wanted", [("never", ways.KEPT), ("auto", ways.ANEW_CHAIN), ("always", ways.ANEW_CHAIN)]
)
def test_the_setting_decides(monkeypatch: pytest.MonkeyPatch, setting: str, wanted: str) -> None:
    monkeypatch.setenv("COMFUSE_RECOMPUTE", setting)
    x = torch.empty(1, 128, dtype=BF16).expand(327680, 128)
    w0, w1 = torch.empty(512, 128, dtype=BF16), torch.empty(128, 512, dtype=BF16)
    nothing = (None, None, None, None)
    assert ways.way_of(x, w0, None, w1, *nothing, "silu", None, "before") == wanted


def test_a_chain_is_planned_with_what_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing falls back where a residual or a norm leaves no plan for one kernel."""
    monkeypatch.setenv("COMFUSE_RECOMPUTE", "always")
    planned: list[ChainSpec] = []

    def refuse(program: Any, *rest: Any) -> Any:
        if isinstance(program, ChainSpec):
            planned.append(program)
            raise PlanError("no")
        return plan(program, *rest)

    monkeypatch.setattr(ways, "plan", refuse)
    ways.predicted.cache_clear()
    with _Regions() as regions:
        CASES[6](leaves(CASES[6].arguments((2, 3), BF16, FP32))).float().sum().backward()
    ways.predicted.cache_clear()
    assert not any(isinstance(spec, ChainSpec) for spec in regions.specs)
    assert [o.name for o in planned[0].operands] == [
        "b0",
        "b1",
        "residual",
        "norm_weight",
        "norm_bias",
        "eps",
    ]
    assert [o.name for o in planned[0].outputs] == ["y", "pre", "mean", "rstd"]


@pytest.mark.parametrize("sizes", [(7, H, N), (K, H, 20), (0, H, N)], ids=str)
@pytest.mark.parametrize("case", [CASES[0], CASES[-3]], ids=str)
def test_sizes_that_no_kernel_takes_are_kept(
    case: Case, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFUSE_RECOMPUTE", "always")
    k, h, n = sizes
    shapes = {"x": (5, k), "w0": (h, k), "w1": (n, h)}
    given = {name: torch.randn(shape).to(BF16).requires_grad_() for name, shape in shapes.items()}
    with _Regions() as regions:
        case(given).float().sum().backward()
    assert regions.outputs == []


@pytest.mark.parametrize("name", KEEPING)
def test_what_has_no_other_way_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_RECOMPUTE", "always")
    case = next(c for c in CASES if c.name == name)
    with _Regions() as regions:
        case(leaves(case.arguments((3,), BF16, BF16))).float().sum().backward()
    assert regions.outputs == []


def test_gradients_of_one_kind_whichever_way(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = leaves(CASES[6].arguments(LEAD, BF16, FP32))
    found = []
    for setting in ("never", "always"):
        monkeypatch.setenv("COMFUSE_RECOMPUTE", setting)
        y = ops.fused_mlp(**arguments, **CASES[6].options)
        found.append(torch.autograd.grad(y.float().sum(), list(arguments.values())))
    for kept, anew in zip(*found, strict=True):
        assert (kept.dtype, kept.shape) == (anew.dtype, anew.shape)
