"""Inputs that a kernel cannot read in place: copied and counted, computed in another way, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import errors, fallbacks
from comfuse.generator import catalog
from comfuse.generator.spec import DType, FusedSpec
from comfuse.reference.accuracy import relative_error, tolerance
from tests.gpu.test_ops import OpCase, OpInputs, make_inputs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "counted")]

CASE = OpCase("layernorm", 768)


UNALIGNED = (1, 100, 1001)


def specs_ahead() -> list[FusedSpec]:
    rows = dict.fromkeys(("bias", "residual", "ln_weight", "ln_bias"), DType.BF16)
    kept = catalog.layernorm(CASE.n, 72, DType.BF16, **rows, saved=True)  # for a backward
    return [CASE.spec(), kept, *(OpCase("layernorm", n).spec() for n in UNALIGNED)]


@pytest.fixture
def counted() -> Iterator[None]:
    fallbacks.reset()
    yield
    fallbacks.reset()


def _with(i: OpInputs, **changed: Tensor) -> OpInputs:
    fields = {
        name: getattr(i, name) for name in ("x", "weight", "bias", "residual", "norm_weight", "norm_bias")
    }
    return OpInputs(i.case, **{**fields, **changed})


def _right(i: OpInputs) -> None:
    y = i.call()
    assert y.is_contiguous()
    assert relative_error(y, i.reference()) <= tolerance(y.dtype, y.numel())


def _in_torch(i: OpInputs) -> Tensor:
    """CASE in torch's own ops, which round in between."""
    z = F.linear(i.x, i.weight, i.bias) + i.residual
    return F.layer_norm(z, z.shape[-1:], i.norm_weight, i.norm_bias)


def _offset(t: Tensor) -> Tensor:
    """The same values two bytes behind an aligned address."""
    flat = torch.empty(t.numel() + 1, device=t.device, dtype=t.dtype)
    view = flat[1:].view(t.shape)
    view.copy_(t)
    assert view.data_ptr() % 16
    return view


def _transposed(t: Tensor) -> Tensor:
    """The same values, columns first in memory."""
    return t.t().contiguous().t()


def _odd_rows(t: Tensor) -> Tensor:
    """The same values in rows whose distance is no multiple of 16 bytes."""
    wide = torch.empty(t.shape[0], t.shape[1] + 1, device=t.device, dtype=t.dtype)
    wide[:, :-1] = t
    return wide[:, :-1]


@pytest.mark.parametrize("change", [_offset, _transposed, _odd_rows])
@pytest.mark.parametrize("name", ["x", "weight", "residual"])
def test_matrices_that_tma_cannot_read_are_copied_and_counted(
    name: str, change: Callable[[Tensor], Tensor]
) -> None:
    """Of 257 rows: columns that follow each other in memory do not start at multiples of 16 bytes."""
    if (name, change) == ("weight", _transposed):
        pytest.skip("read in place: see the next test")
    i = make_inputs(CASE, (257,), 72)
    _right(i)
    assert fallbacks.counts() == {}
    _right(_with(i, **{name: change(getattr(i, name))}))
    assert sum(fallbacks.counts().values()) == 1


@pytest.mark.parametrize("name", ["x", "weight"])
def test_factors_with_columns_first_are_read_in_place(name: str) -> None:
    i = make_inputs(CASE, (264,), 72)
    _right(_with(i, **{name: _transposed(getattr(i, name))}))
    assert fallbacks.counts() == {}


@pytest.mark.parametrize("name", ["x", "weight", "residual"])
def test_aligned_slices_are_read_in_place(name: str) -> None:
    i = make_inputs(CASE, (257,), 72)
    t = getattr(i, name)
    wide = torch.full((t.shape[0], t.shape[1] + 16), float("nan"), device=t.device, dtype=t.dtype)
    wide[:, 8:-8] = t
    _right(_with(i, **{name: wide[:, 8:-8]}))
    assert fallbacks.counts() == {}


def test_vectors_with_any_stride_and_address() -> None:
    i = make_inputs(CASE, (257,), 72)
    _right(_with(i, bias=i.bias.repeat_interleave(3)[::3], norm_weight=_offset(i.norm_weight)))
    _right(_with(i, norm_bias=i.norm_bias[5:6].expand(768)))
    assert fallbacks.counts() == {}


def test_a_residual_that_is_repeated() -> None:
    i = make_inputs(CASE, (257,), 72)
    _right(_with(i, residual=i.residual[:1].expand(257, 768)))


@pytest.mark.parametrize("n", UNALIGNED)
def test_n_may_be_of_any_size(n: int) -> None:
    _right(make_inputs(OpCase("layernorm", n), (33,), 72))
    assert fallbacks.counts() == {}


@pytest.mark.parametrize("n, k", [(768, 40 + 1), (1001, 107)])
def test_k_that_is_no_multiple_of_eight_runs_otherwise_and_is_counted(n: int, k: int) -> None:
    _right(make_inputs(OpCase("layernorm", n), (33,), k))
    assert sum(fallbacks.counts().values()) == 1


def test_no_products_give_the_program_applied_to_zeros() -> None:
    _right(make_inputs(CASE, (33,), 0))
    assert sum(fallbacks.counts().values()) == 1


def test_a_kernel_that_may_not_be_compiled_runs_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _right(make_inputs(CASE, (257,), 72))  # the binding itself is there
    monkeypatch.setenv("COMFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COMFUSE_JIT", "off")
    i = make_inputs(OpCase("layernorm", 776), (33,), 72)
    _right(i)
    assert sum(fallbacks.counts().values()) == 1


def test_strict_refuses_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    with pytest.raises(errors.FallbackError, match="multiple of 8"):
        make_inputs(OpCase("layernorm", 768), (33,), 41).call()


def test_bad_arguments_are_named() -> None:
    i = make_inputs(CASE, (257,), 72)
    for error, name, bad in (
        (errors.ShapeError, "weight", i.weight[:, :64]),
        (errors.ShapeError, "weight", i.weight[0]),
        (errors.ShapeError, "residual", i.residual[:, :760]),
        (errors.ShapeError, "bias", i.bias[:760]),
        (errors.ShapeError, "ln_weight", i.norm_weight[:760]),
        (errors.DTypeError, "weight", i.weight.half()),
        (errors.DTypeError, "x", i.x.float()),
        (errors.DTypeError, "residual", i.residual.double()),
        (errors.DeviceError, "bias", i.bias.cpu()),
        (errors.DeviceError, "weight", i.weight.cpu()),
    ):
        field = {"ln_weight": "norm_weight"}.get(name, name)
        with pytest.raises(error, match=name):
            _with(i, **{field: bad}).call()
    _right(i)  # and the context is none the worse


@pytest.mark.parametrize(
    "k, change, fallen_back", [(72, Tensor.clone, 0), (72, _offset, 1), (41, Tensor.clone, 1)]
)
def test_gradients_are_right_however_the_forward_runs(
    k: int, change: Callable[[Tensor], Tensor], fallen_back: int
) -> None:
    """The forward counts what it counts where none are wanted; the backward is torch's own."""
    i = make_inputs(CASE, (129,), k)

    def gradient(x: Tensor, op: Callable[[OpInputs], Tensor]) -> Tensor:
        x.requires_grad_()
        y = op(_with(i, x=x))
        (found,) = torch.autograd.grad(y, x, i.residual.to(y.dtype))
        return found

    exact = gradient(i.x.double(), OpInputs.reference)
    eager = relative_error(gradient(i.x.clone(), _in_torch), exact)
    assert fallbacks.counts() == {}
    found = gradient(change(i.x), OpInputs.call)
    assert relative_error(found, exact) <= 2 * eager
    assert sum(fallbacks.counts().values()) == fallen_back


def test_opcheck() -> None:
    """The C++ kernels behind torch's own checks of schema, fakes and aliasing."""
    i = make_inputs(CASE, (129,), 72)
    text = i.case.spec(72).text()
    operands = [i.bias, i.residual, i.norm_weight, i.norm_bias]
    torch.library.opcheck(torch.ops.comfuse.region.default, (text, i.x, i.weight, operands, [1e-5]))
