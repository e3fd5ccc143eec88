"""The ways into ComFuse for users of torch.compile, through the whole of TorchInductor."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends import registry
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

import comfuse
from comfuse.errors import ComFuseError, ToolchainError
from comfuse.inductor import hook, log
from comfuse.inductor.hook import FUSING, SAVING, ComFusePass, SavingPass, hooks
from comfuse.inductor.policy import Policy

Tensor = torch.Tensor
_ROOT = Path(__file__).parents[2]


def block(x: Tensor, w: Tensor, g: Tensor, b: Tensor) -> Tensor:
    """One region, so that TorchInductor has no C++ to compile."""
    return F.layer_norm(F.linear(x, w), (64,), g, b)


def check(fn: Callable[..., Tensor], *, forced: bool = True) -> None:
    """Runs a compiled block, and checks that it is right and, where that was asked for, fused."""
    torch.manual_seed(0)
    args = [torch.randn(*shape, dtype=torch.bfloat16) for shape in ((24, 64), (64, 64), (64,), (64,))]
    with torch.no_grad():
        found = fn(*args)
    exact = block(*(x.double() for x in args))
    assert (found.double() - exact).abs().max() <= 2 * (block(*args).double() - exact).abs().max()
    (verdict,) = log.verdicts()
    assert verdict.fused or not forced, verdict


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    torch._dynamo.reset()
    log.clear()
    with config.patch(force_disable_caches=True):
        yield


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend's name, as an installation makes it known."""
    ((name, value),) = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "torch_dynamo_backends"
    ].items()
    point = EntryPoint(name, value, "torch_dynamo_backends")
    registry.list_backends()  # which looks for others
    monkeypatch.setitem(registry._BACKENDS, name, point)
    yield
    registry._COMPILER_FNS.pop(name, None)


class Probe(CustomGraphPass):
    """A pass of the user's: notes what it saw."""

    def __init__(self, uuid: str | None = "probe") -> None:
        self.seen: list[str] = []
        self.modes: dict[str, Any] = {}
        self._uuid = uuid

    def __call__(self, graph: Graph) -> None:
        self.seen.append(str(graph))
        for name in ("max_autotune", "coordinate_descent_tuning", "triton.cudagraphs"):
            self.modes[name] = config.get_config_copy()[name]

    def uuid(self) -> str | None:
        return self._uuid

    def check_first(self) -> None:
        """Checks that it ran once, on the graph that ComFuse had not changed."""
        (text,) = self.seen
        assert "aten.mm" in text
        assert "comfuse" not in text


def test_importing_starts_no_compiler() -> None:
    code = (
        "import sys, torch, comfuse\n"
        "loaded = [n for n in sys.modules if n.startswith(('torch._dynamo', 'torch._inductor', 'triton'))]\n"
        "assert not loaded, loaded\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert all(callable(f) for f in (comfuse.backend, comfuse.enable, comfuse.options))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_ROOT, timeout=120)


# --- enable ----------------------------------------------------------------------------------------


def test_enable_as_a_context() -> None:
    users = Probe()
    with config.patch(post_grad_custom_pre_pass=users):
        with comfuse.enable(force=True):
            check(torch.compile(block))
        assert config.post_grad_custom_pre_pass is users
    users.check_first()


def test_enable_as_a_function() -> None:
    enabled = comfuse.enable(force=True)
    try:
        check(torch.compile(block, mode="max-autotune-no-cudagraphs"))
    finally:
        enabled.disable()
    assert config.post_grad_custom_pre_pass is None


def test_the_inner_of_two_holds() -> None:
    with comfuse.enable():
        with comfuse.enable(force=True):
            assert config.post_grad_custom_pre_pass == ComFusePass(Policy(force=True))
        assert config.post_grad_custom_pre_pass == ComFusePass()


# --- options ---------------------------------------------------------------------------------------


def test_options() -> None:
    users = Probe()
    given = comfuse.options(
        force=True, mode="max-autotune-no-cudagraphs", post_grad_custom_pre_pass=users, epilogue_fusion=False
    )
    assert given["epilogue_fusion"] is False
    check(torch.compile(block, options=given))
    users.check_first()
    assert users.modes["max_autotune"]
    assert config.post_grad_custom_pre_pass is None


def test_equal_options_are_one_backend() -> None:
    assert comfuse.options(force=True) == comfuse.options(force=True)
    assert comfuse.options(force=True) != comfuse.options()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Unexpected optimization option fuse_all"):
        torch.compile(block, options=comfuse.options(fuse_all=True))


@pytest.mark.parametrize("name, allowed", [("gpu", "h200"), ("jit", "auto, off, require")])
def test_values_that_comfuse_does_not_know(name: str, allowed: str) -> None:
    with pytest.raises(ComFuseError, match=f"'sometimes'.*{allowed}"):
        comfuse.options(**{name: "sometimes"})


# --- the backend -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("default", ()),
        ("max-autotune-no-cudagraphs", ("max_autotune", "coordinate_descent_tuning")),
        ("reduce-overhead", ("triton.cudagraphs",)),
    ],
)
@pytest.mark.usefixtures("installed")
def test_mode_of_the_backend(mode: str, expected: tuple[str, ...]) -> None:
    users = Probe()
    with config.patch(post_grad_custom_pre_pass=users):
        check(torch.compile(block, backend="comfuse", mode=mode), forced=False)
    users.check_first()
    assert {name for name, on in users.modes.items() if on} == set(expected)
    torch._dynamo.reset()  # which drops the backend's CUDA graphs


@pytest.mark.usefixtures("installed")
def test_options_of_the_backend() -> None:
    users = Probe()
    given = {"force": True, "post_grad_custom_pre_pass": users, "max_autotune": True}
    check(torch.compile(block, backend="comfuse", options=given))
    users.check_first()
    assert users.modes["max_autotune"]


def test_the_backend_without_installation() -> None:
    check(torch.compile(block, backend=comfuse.backend, options=comfuse.options(force=True)))


def test_one_compile_for_all_numbers_of_rows() -> None:
    def fn(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        h = F.linear(x, w) + r
        return h, F.softmax(h, -1)

    compiled = torch.compile(fn, backend=comfuse.backend, options={"force": True})
    w = torch.randn(64, 64, dtype=torch.bfloat16)
    for rows in ((2, 24), (3, 7), (16, 5)):
        x, r = (torch.randn(*rows, 64, dtype=torch.bfloat16) for _ in range(2))
        for tensor in (x, r):
            torch._dynamo.mark_dynamic(tensor, (0, 1))
        with torch.no_grad():
            results = compiled(x, w, r)
        exact = fn(x.double(), w.double(), r.double())
        for one, half, double in zip(results, fn(x, w, r), exact, strict=True):
            assert one.stride() == half.stride()
            assert (one.double() - double).abs().max() <= 2 * (half.double() - double).abs().max()
    ((verdict,),) = log.compiles()
    assert verdict.fused
    assert "*" in verdict.shape[0]


@pytest.mark.usefixtures("installed")
def test_the_backend_is_listed() -> None:
    assert "comfuse" in registry.list_backends()


def test_unknown_options_of_the_backend_are_refused() -> None:
    with pytest.raises(Exception, match="Unexpected optimization option fuse_all"):
        torch.compile(torch.sin, backend=comfuse.backend, options={"fuse_all": True})(torch.ones(2))


# --- the user's own passes -------------------------------------------------------------------------


def chained(users: Any, policy: Policy) -> ComFusePass:
    """ComFuse's pass behind users' on the same hook."""
    ours = hooks({FUSING: users}.get, policy)[FUSING]
    assert isinstance(ours, ComFusePass)
    return ours


def test_several_passes_are_chained() -> None:
    first, second = Probe(), Probe()
    ours = chained([first, second], Policy())
    ours(Graph())
    assert len(first.seen) == len(second.seen) == 1
    assert chained(ours, Policy(force=True)) == ComFusePass(Policy(force=True), (first, second))


def test_a_pass_that_asks_whether_it_is_inference() -> None:
    custom_graph_pass = pytest.importorskip("torch._inductor.custom_graph_pass")
    base = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)
    if base is None:
        pytest.skip("this torch has no passes that ask")
    told = []

    class Users(base):
        def __call__(self, graph: Graph, is_inference: bool) -> None:
            told.append(is_inference)

        def uuid(self) -> str:
            return "asks"

    with config.patch(post_grad_custom_pre_pass=Users()):
        check(torch.compile(block, backend=comfuse.backend, options={"force": True}))
    assert told == [True]


def test_the_uuid() -> None:
    own = ComFusePass().uuid()
    assert own == ComFusePass().uuid()
    others = (
        ComFusePass(Policy(force=True)),
        ComFusePass(Policy(gpu="h100")),
        ComFusePass(Policy(jit="off")),
        chained(Probe(), Policy()),
        chained(Probe("other"), Policy()),
    )
    assert len({own, *(other.uuid() for other in others)}) == 6


def test_passes_of_both_directions_are_chained_too() -> None:
    """What the user has on this hook runs first, and is part of the uuid."""
    users = Probe()
    with config.patch({SAVING: users}):
        ours = comfuse.options()[SAVING]
        assert ours == SavingPass((users,))
        with comfuse.enable():
            assert getattr(config, SAVING) == ours
            assert comfuse.options()[SAVING] == ours
        assert getattr(config, SAVING) is users
    ours(Graph())
    assert len(users.seen) == 1
    passes = (SavingPass(), ours, SavingPass((Probe("other"),)))
    assert len({one.uuid() for one in passes}) == 3
    assert SavingPass((Probe(uuid=None),)).uuid() is None


def test_a_pass_without_uuid_keeps_the_graph_from_the_cache() -> None:
    assert chained(Probe(uuid=None), Policy()).uuid() is None
    assert chained(lambda graph: None, Policy()).uuid() is None


def test_the_uuid_knows_what_is_built_where_nothing_is(
    monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    monkeypatch.setenv("COMFUSE_JIT", "off")
    empty = ComFusePass().uuid()
    (cache_dir / "kernels" / "one").mkdir(parents=True)
    assert ComFusePass().uuid() != empty
    monkeypatch.setenv("COMFUSE_JIT", "auto")
    full = ComFusePass().uuid()
    (cache_dir / "kernels" / "two").mkdir()
    assert ComFusePass().uuid() == full


def test_the_uuid_knows_what_kernels_are_built_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that has no kernel for want of a compiler has one when the compiler is there."""

    def without() -> Any:
        raise ToolchainError("nvcc", ("PATH",), "install it")

    ours = ComFusePass(Policy(gpu="h200"))
    whole = ours.uuid()
    with monkeypatch.context() as patch:
        patch.setattr(hook, "find_cuda", without)
        bare = ours.uuid()
        assert bare not in (None, whole)
    for name, value in (("COMFUSE_NVCC_FLAGS", "-lineinfo"), ("COMFUSE_BUILD_TIMEOUT", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert ours.uuid() not in (None, whole)
    monkeypatch.setenv("COMFUSE_JIT", "off")
    off = ours.uuid()
    monkeypatch.setattr(hook, "find_cuda", without)
    assert ours.uuid() == off  # nothing is built


def test_the_uuid_knows_whether_anything_may_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ComFusePass(Policy(gpu="h200"))
    strict = ours.uuid()
    monkeypatch.setenv("COMFUSE_STRICT", "0")
    assert ours.uuid() not in (None, strict)


@pytest.mark.parametrize("variable, name", [("COMFUSE_CALIBRATION", ""), ("COMFUSE_TUNED", "h200.json")])
def test_a_file_that_cannot_be_read_keeps_graphs_from_the_cache(
    variable: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "h200.json").write_text("{no")
    monkeypatch.setenv(variable, str(tmp_path / name))
    assert ComFusePass(Policy(gpu="h200")).uuid() is None


def test_flags_that_cannot_be_read_keep_graphs_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_NVCC_FLAGS", '"')
    assert ComFusePass(Policy(gpu="h200")).uuid() is None
