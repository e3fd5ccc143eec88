"""GEMMs back to back: exact on integers, against float64, bit-equal when repeated, and through the ops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import fallbacks, ops
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan.chain import CHAIN_SHAPES
from comfuse.generator.spec import DType, FusedSpec
from comfuse.reference.accuracy import relative_error, tolerance
from tests.gpu.chains import (
    DEFERRED,
    DEFERRED_EXACT,
    EXACT,
    THREE,
    ChainCase,
    ChainInputs,
    Sizes,
    make_inputs,
    synchronize,
)
from tests.gpu.compare import same_bits
from tests.gpu.outputs import PATTERNS, Outputs, poison_allocator

pytestmark = pytest.mark.gpu


BF16, FP16 = torch.bfloat16, torch.float16
#: The shapes that are measured: with all weights on the chip, the first ones, and none.
MEASURED = (
    ChainCase("gelu", Sizes(128, 512, 128)),
    ChainCase("gelu", Sizes(128, 128, 128)),
    ChainCase("gelu", Sizes(256, 1024, 256)),
    ChainCase("gelu", Sizes(64, 256, 64)),
    ChainCase("edge", Sizes(128, 128, 128)),
    ChainCase("swiglu", Sizes(256, 512, 192)),
    ChainCase("edge network", Sizes(128, 128, 128, 128)),
)
SIZES = (Sizes(64, 64, 64), Sizes(128, 256, 128), Sizes(8, 8, 8), Sizes(72, 200, 104), Sizes(200, 72, 120))
#: The smallest kernels, of one tile and one block: what these show is easiest to read.
SMALLEST = tuple(ChainCase("relu", SIZES[0], shape=shape) for shape in CHAIN_SHAPES)
#: Every way to divide registers and memory.
SHAPES = tuple(
    ChainCase(program, sizes, shape=shape)
    for shape, (program, sizes) in itertools.product(
        CHAIN_SHAPES,
        [("relu", s) for s in (*SIZES, Sizes(256, 1024, 256))]
        + [("gated operands", s) for s in (SIZES[1], SIZES[3])],
    )
)
PLANNED = tuple(ChainCase(program, sizes) for program in EXACT for sizes in SIZES[1:])
ROUNDED = (
    *MEASURED,
    *(ChainCase(p, Sizes(72, 200, 104)) for p in ("gelu_tanh", "post-norm", "rms", "edge", "scored")),
    *(ChainCase(p, Sizes(128, 256, 192), DType.FP16) for p in ("gelu", "swiglu", "post-norm")),
)
#: Reductions between the GEMMs, in parts of blocks, one block and many.
DEFERRED_SHAPES = tuple(
    ChainCase(program, sizes, shape=shape)
    for program, sizes in itertools.product(DEFERRED_EXACT, (SIZES[1], SIZES[3]))
    for shape in CHAIN_SHAPES
)
DEFERRED_ROUNDED = tuple(
    ChainCase(program, sizes)
    for program in sorted(DEFERRED.keys() - DEFERRED_EXACT.keys())
    for sizes in (SIZES[0], SIZES[3], Sizes(128, 1024, 128))
)
#: Three GEMMs: of one width, each narrower than the one before or not, with all
#: weights on the chip, those of the first GEMM, and none.
THREE_SIZES = (
    Sizes(128, 128, 128, 128),
    Sizes(64, 64, 64, 64),
    Sizes(72, 200, 40, 104),
    Sizes(40, 328, 104, 200),
    Sizes(128, 512, 64, 256),
    Sizes(256, 256, 256, 256),
)
THREE_SHAPES = tuple(
    ChainCase(program, sizes, shape=shape)
    for program, sizes, shape in itertools.product(THREE, THREE_SIZES[:4], CHAIN_SHAPES)
)
THREE_PLANNED = tuple(ChainCase(program, sizes) for program in THREE for sizes in THREE_SIZES)
THREE_ROUNDED = tuple(
    ChainCase(program, sizes)
    for program in ("edge network", "three gelu", "three post-norm")
    for sizes in (THREE_SIZES[0], Sizes(128, 256, 64, 128), THREE_SIZES[5])
    if program == "three gelu" or sizes.k == sizes.n
)
BORDERS = (1, 63, 64, 65, 127, 128, 129, 191, 193, 1000)


def run(i: ChainInputs, launch: Callable[[], None], out: Outputs) -> tuple[Tensor, ...]:
    """The results of two launches into memory that started as different bytes: the same, nothing around."""
    results = []
    for pattern in PATTERNS:
        out.poison(pattern)
        launch()
        synchronize()
        out.check_guards(pattern)
        results.append([x.clone() for x in out.tensors])
    for first, second in zip(*results, strict=True):
        assert same_bits(first, second)
    return tuple(results[0])


def check_exact(i: ChainInputs, results: tuple[Tensor, ...], *, round_middle: bool = True) -> None:
    wanted = i.reference(round_middle=round_middle)
    for y, exact in zip(results, wanted, strict=True):
        differ = y.double() != exact.to(y.dtype).double()
        if not bool(differ.any()):
            continue
        places = differ.nonzero()[:8].tolist()
        pairs = "; ".join(f"{at}: {float(y[tuple(at)])}, not {float(exact[tuple(at)])}" for at in places)
        lines = [sorted({p[dim] for p in differ.nonzero().tolist()})[:20] for dim in range(y.dim())]
        raise AssertionError(
            f"M = {i.a.shape[0]}: {int(differ.sum())} of {y.numel()} wrong, {pairs}; in each dimension, the"
            f" first places that have any: {lines}"
        )


def check_close(i: ChainInputs, results: tuple[Tensor, ...]) -> None:
    """A rounding a link: in each middle and at the store."""
    for y, exact in zip(results, i.reference(round_middle=False), strict=True):
        roundings = len(i.case.chain.links)
        error, allowed = relative_error(y, exact), roundings**0.5 * tolerance(TORCH[i.case.dtype], y.numel())
        assert error <= allowed, f"M = {i.a.shape[0]}: error {error:.2e}, {allowed:.2e} allowed"


TORCH = {DType.BF16: BF16, DType.FP16: FP16}


@pytest.mark.parametrize("case", SMALLEST, ids=str)
@pytest.mark.parametrize("spread", ["neither", "first", "second", "both"])
def test_one_tile(spread: str, case: ChainCase, kernels) -> None:
    """With identities as factors a wrong value is another element of A: it says what was taken for what.

    ``spread``: which of the GEMMs mixes columns.
    """
    for m in (64, 1, 128):
        i = make_inputs(case, m, integers=True)
        i.a.copy_((torch.arange(i.a.numel(), device=i.a.device) % 251).view_as(i.a))
        factors, biases = i.split
        for factor, name in zip(factors, ("first", "second"), strict=True):
            if spread not in (name, "both"):
                factor.copy_(torch.eye(len(factor)))
        for bias in biases:
            bias.zero_()
        if spread != "neither":
            i.a.remainder_(3)
        out = i.outputs()
        check_exact(i, run(i, i.launcher(kernels(case), out), out))


@pytest.mark.parametrize("case", [*SHAPES, *THREE_SHAPES], ids=str)
def test_every_shape_is_exact(case: ChainCase, kernels) -> None:
    """One element at a wrong place, or one product missed, shows."""
    kernel = kernels(case)
    for m in (1, 65, 129, 1000):
        i = make_inputs(case, m, integers=True)
        out = i.outputs()
        check_exact(i, run(i, i.launcher(kernel, out), out))


@pytest.mark.parametrize("case", [*PLANNED, *THREE_PLANNED], ids=str)
def test_every_program_is_exact(case: ChainCase, kernels) -> None:
    kernel = kernels(case)
    for m in BORDERS:
        i = make_inputs(case, m, integers=True)
        out = i.outputs()
        check_exact(i, run(i, i.launcher(kernel, out), out))


@pytest.mark.parametrize("case", DEFERRED_SHAPES, ids=str)
def test_middle_reductions_are_exact(case: ChainCase, kernels) -> None:
    kernel = kernels(case)
    for m in (1, 65, 129, 1000):
        i = make_inputs(case, m, integers=True)
        out = i.outputs()
        check_exact(i, run(i, i.launcher(kernel, out), out), round_middle=False)


@pytest.mark.parametrize("case", [*ROUNDED, *DEFERRED_ROUNDED, *THREE_ROUNDED], ids=str)
def test_against_float64(case: ChainCase, kernels) -> None:
    kernel = kernels(case)
    for m in (1, 65, 1000, 50000):
        i = make_inputs(case, m)
        out = i.outputs()
        check_close(i, run(i, i.launcher(kernel, out), out))


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_many_tiles_a_warpgroup(case: ChainCase, kernels) -> None:
    """Exactness is tested at sizes that few CTAs need; here each warpgroup takes tens of tiles in turn."""
    relu = ChainCase("relu" if case.sizes.h1 is None else "three", case.sizes)
    i = make_inputs(relu, 400001, integers=True)
    out = i.outputs()
    i.launcher(kernels(relu), out)()
    torch.cuda.synchronize()
    rows = torch.arange(0, 400001, 97, device="cuda")
    some = ChainInputs(relu, i.a[rows], i.b, i.operands, i.scalars)
    check_exact(some, tuple(y[rows] for y in out.tensors))
    out.check_guards()
    out.check_finite()


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_repeats_give_the_same_bits(case: ChainCase, kernels) -> None:
    i = make_inputs(case, 30011)
    out = i.outputs()
    launch = i.launcher(kernels(case), out)
    first = run(i, launch, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for again in (launch, graph.replay) * 10:
        out.poison()
        again()
        torch.cuda.synchronize()
        assert all(same_bits(y, f) for y, f in zip(out.tensors, first, strict=True))


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_two_streams_at_once(case: ChainCase, kernels) -> None:
    kernel = kernels(case)
    inputs = [make_inputs(case, 20000, seed=seed) for seed in range(2)]
    outs = [i.outputs() for i in inputs]
    launches = [i.launcher(kernel, out) for i, out in zip(inputs, outs, strict=True)]
    alone = [run(i, launch, out) for i, launch, out in zip(inputs, launches, outs, strict=True)]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(20):
        for launch, stream in zip(launches, streams, strict=True):
            with torch.cuda.stream(stream):
                launch()
    torch.cuda.synchronize()
    for out, expected in zip(outs, alone, strict=True):
        assert all(same_bits(y, e) for y, e in zip(out.tensors, expected, strict=True))


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_a_row_s_nan_stays_in_its_row(case: ChainCase, kernels) -> None:
    i = make_inputs(case, 193)
    clean = i.outputs()
    i.launcher(kernels(case), clean)()
    spoilt = ChainInputs(case, i.a.clone(), i.b, i.operands, i.scalars)
    bad = torch.zeros(193, dtype=torch.bool, device="cuda")
    bad[[0, 64, 191, 192]] = True
    spoilt.a[bad] = float("nan")
    out = spoilt.outputs()
    spoilt.launcher(kernels(case), out)()
    torch.cuda.synchronize()
    for y, expected in zip(out.tensors, clean.tensors, strict=True):
        assert bool(y[bad].isnan().all())
        assert same_bits(y[~bad], expected[~bad])


@pytest.mark.parametrize("layout", ["slice", "aligned-slice"])
def test_outputs_with_strides(layout: str, kernels) -> None:
    """What lies around a slice of a larger matrix stays as it was; one at an odd address is strided."""
    case = ChainCase("relu", Sizes(128, 256, 128))
    i = make_inputs(case, 129, integers=True)
    last = case.chain.last
    strided = tuple(replace(o, strided=layout == "slice") for o in last.outputs)
    chain = ChainSpec((case.chain.links[0], replace(last, outputs=strided)))
    out = i.outputs(layout)

    def launch() -> None:
        ops.region_out(chain.text(), i.a, i.b, i.operands, i.scalars, list(out.tensors))

    check_exact(i, run(i, launch, out))


# --- through the ops ---


@pytest.fixture
def no_fallback() -> Iterator[None]:
    fallbacks.reset()
    yield
    assert fallbacks.counts() == {}


@pytest.fixture
def counted() -> Iterator[None]:
    fallbacks.reset()
    yield
    fallbacks.reset()


def normal(*size: int, dtype: torch.dtype = BF16, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(size) + seed)
    return (torch.randn(size, device="cuda", generator=generator) * scale).to(dtype)


def mlp_arguments(*lead: int, k: int = 128, h: int = 256, n: int = 128) -> dict[str, Tensor]:
    return {
        "x": normal(*lead, k),
        "w0": normal(h, k, scale=k**-0.5),
        "b0": normal(h),
        "w1": normal(n, h, scale=h**-0.5),
        "b1": normal(n, dtype=torch.float32),
    }


def mlp(x: Tensor, w0: Tensor, b0: Tensor, w1: Tensor, b1: Tensor) -> Tensor:
    x, w0, b0, w1, b1 = (t.double() for t in (x, w0, b0, w1, b1))
    return F.linear(F.gelu(F.linear(x, w0, b0)), w1, b1)


def close(y: Tensor, wanted: Tensor) -> bool:
    return y.shape == wanted.shape and relative_error(y, wanted) <= 2**0.5 * tolerance(y.dtype, y.numel())


def specs_ahead() -> list[ChainSpec | FusedSpec]:
    """The programs of most calls below."""
    d, n, k, h = DType.BF16, 128, 128, 256
    biases = {"b0": d, "b1": DType.FP32}
    return [
        catalog.mlp(n, k, h, d, **biases),
        catalog.mlp(n, k, h, d, **biases, norm="layernorm", residual=d, residual_position="after"),
    ]


@pytest.mark.usefixtures("kernels", "no_fallback")
class TestOps:
    @pytest.mark.parametrize("lead", [(1,), (127,), (2, 64), (3, 5, 43), (16344,), ()])
    def test_leading_sizes(self, lead: tuple[int, ...]) -> None:
        arguments = mlp_arguments(*lead)
        y = ops.fused_mlp(**arguments)
        poison_allocator(y)
        del y
        assert close(ops.fused_mlp(**arguments), mlp(**arguments))

    @pytest.mark.parametrize("lead", [(0,), (3, 0)])
    def test_no_rows(self, lead: tuple[int, ...]) -> None:
        y = ops.fused_mlp(**mlp_arguments(*lead))
        assert y.shape == (*lead, 128)
        assert y.is_cuda

    def test_the_residual_may_be_x(self) -> None:
        arguments = mlp_arguments(1000)
        x = arguments["x"]
        y = ops.fused_mlp(**arguments, norm="layernorm", residual=x, residual_position="after")
        assert close(y, F.layer_norm(mlp(**arguments), (128,)) + x.double())

    def test_b2b(self) -> None:
        x, w0, w1 = normal(1000, 64), normal(192, 64, scale=1 / 8), normal(72, 192, scale=192**-0.5)
        tile, row = normal(1000, 192), normal(1, 72)
        y = ops.fused_b2b_gemm(x, w0, w1, activation0="silu", residual0=tile, residual1=row)
        middle = F.silu(x.double() @ w0.double().t()) + tile.double()
        assert close(y, middle @ w1.double().t() + row.double())

    def test_compiled(self) -> None:
        arguments = mlp_arguments(1000)
        torch.compiler.reset()
        compiled = torch.compile(lambda x, **rest: ops.fused_mlp(x * 2, **rest), fullgraph=True)
        assert close(compiled(**arguments), mlp(**arguments | {"x": arguments["x"] * 2}))


@pytest.mark.usefixtures("kernels", "counted")
def test_what_is_refused_runs_a_kernel_a_layer() -> None:
    arguments = mlp_arguments(1000, k=512, h=512, n=512)
    assert close(ops.fused_mlp(**arguments), mlp(**arguments))
    ((where, reason),) = fallbacks.counts()
    assert where == "fused_mlp"
    assert "N = 512" in reason


@pytest.mark.usefixtures("kernels", "counted")
def test_rows_that_are_not_contiguous_are_copied() -> None:
    arguments = mlp_arguments(1000)
    turned = {name: t.t().contiguous().t() if t.ndim == 2 else t for name, t in arguments.items()}
    assert close(ops.fused_mlp(**turned), mlp(**arguments))
    assert sorted(fallbacks.counts().values()) == [1, 2]
