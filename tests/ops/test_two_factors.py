"""How the A of a second product reaches a kernel, which is emulated; and what is refused in its place."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from comfuse import reference
from comfuse.errors import ArgumentError
from comfuse.generator.spec import FusedSpec, Major, Pair, Space
from comfuse.library.signature import signature
from comfuse.ops import programs, region, region_out
from tests.ops.host_binding import Host
from tests.ops.launching import BF16, FP32, K, as_major, builder, finish, launch, random
from tests.ops.test_parity import of_cpp, of_python

K1, N = 40, 24
OWN = Pair(K1)


def program(second: Pair = OWN, **options: object) -> FusedSpec:
    b = builder(products=2, second=second, **options)
    x = b.op("add", b.gemm(), b.load("t", Space.ROW, FP32))
    return finish(b, b.op("mul", x, b.gemm(1)))


@pytest.mark.parametrize("a_major", Major)
@pytest.mark.parametrize("b_major", Major)
@pytest.mark.parametrize("lead", [(8,), (2, 12)])
def test_all_four_layouts_are_read_in_place(
    host: Host, a_major: Major, b_major: Major, lead: tuple[int, ...]
) -> None:
    own, second = as_major(random(*lead, K1), a_major), as_major(random(N, K1), b_major)
    spec = program(Pair(K1, a_major, b_major))
    launch(host, spec, random(*lead, K), random(N, K), (own, second, random(N, dtype=FP32)))
    args = host.launched[0].args
    assert (args.k, args.k1, args.a1.data) == (K, K1, own.data_ptr())
    assert args.a1.stride == (K1 if a_major is Major.K else torch.Size(lead).numel())
    assert args.b[1].stride == (K1 if b_major is Major.K else N)
    assert host.copies == [0, 0, 0]


def test_another_layout_is_copied(host: Host) -> None:
    spec = program(Pair(K1, Major.MN, Major.MN))
    launch(host, spec, random(8, K), random(N, K), (random(8, K1), random(N, K1), random(N, dtype=FP32)))
    assert host.copies == [1, 1, 0]


@pytest.mark.parametrize("shared", [False, True])
def test_batches(host: Host, shared: bool) -> None:
    second = random(N, K1) if shared else random(3, N, K1)
    operands = (random(3, 8, K1), second, random(N, dtype=FP32))
    launch(host, program(batched=True), random(3, 8, K), random(N, K), operands)
    args = host.launched[0].args
    assert (args.a1.batch_stride, args.b[1].batch_stride) == (8 * K1, 0 if shared else N * K1)


@pytest.mark.parametrize("lead, batched", [((6,), False), ((2, 3), False), ((), False), ((2, 3), True)])
def test_shapes(host: Host, lead: tuple[int, ...], batched: bool) -> None:
    spec = program(batched=batched)
    host.register(spec)
    a, b, t = random(*lead, K), random(N, K), random(N, dtype=FP32)
    fine = random(*lead, K1), random(N, K1)
    sizes = sorted({1, 2, 3, 6, N, K, K1})
    accepted = [0, 0]
    for shape in (s for rank in range(len(lead) + 3) for s in product(sizes, repeat=rank)):
        for i in (0, 1):
            factors = [*fine]
            factors[i] = torch.zeros(shape).bfloat16()
            in_python = of_python(spec, a, b, [*factors, t])
            assert of_cpp(host, spec, a, b, [*factors, t]) == in_python, shape
            accepted[i] += in_python is None
    # Of a batch's second B: one for all, one each, or in two dimensions, of which either or both repeat.
    assert accepted == [1, 5 if batched else 1]
    said = str(of_python(spec, a, b, [random(*lead, K), fine[1], t]))
    assert f"a1 is of shape {(*lead, K)}; allowed: a's leading sizes and K = 40, for a of shape" in said


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
def test_dtypes(host: Host, dtype: torch.dtype) -> None:
    spec = program()
    host.register(spec)
    operands = [random(6, K1).to(dtype), random(N, K1), random(N, dtype=FP32)]
    in_python = of_python(spec, random(6, K), random(N, K), operands)
    assert in_python == f"DTypeError: region: a1 is {dtype}; allowed: torch.bfloat16"
    assert of_cpp(host, spec, random(6, K), random(N, K), operands) == in_python


def test_places_among_the_operands() -> None:
    found = programs.parse(program().text())
    assert [(f.name, f.n, f.k, f.place) for f in found.factors] == [
        ("b", N, K, -1),
        ("a1", None, K1, 0),
        ("b1", N, K1, 1),
    ]
    assert [tensor.place for tensor in found.tensors] == [2]
    b, *operands = (object() for _ in range(4))
    assert found.joined(*found.split(b, operands)) == (b, operands)  # type: ignore[arg-type]


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (0,)])
def test_the_op_on_a_cpu(lead: tuple[int, ...]) -> None:
    spec = program()
    a, b, own, second, t = (
        random(*lead, K),
        random(N, K),
        random(*lead, K1),
        random(N, K1),
        random(N, dtype=FP32),
    )
    (y,) = region(spec.text(), a, b, [own, second, t])
    scale = spec.nodes[-2].value or 0.0
    wanted = (a.double() @ b.double().t() + t) * (own.double() @ second.double().t()) * scale
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-4)


def test_an_output_in_the_second_a_is_refused() -> None:
    spec = program(Pair(N))
    memory = random(5, N, dtype=FP32)
    own = memory.view(torch.bfloat16).flatten()[: 5 * N].view(5, N)
    operands = [own, random(N, N), random(N, dtype=FP32)]
    with pytest.raises(ArgumentError, match=r"out\[0\] is in memory that a1 is in too"):
        region_out(spec.text(), random(5, K), random(N, K), operands, [], [memory])


def test_the_reference_counts_factors() -> None:
    a, b = random(5, K), random(N, K)
    with pytest.raises(ArgumentError, match="b is 2 tensors; allowed: 3 tensors"):
        reference.evaluate(program(), a, [b, b])
    wrong: list[Tensor] = [b, random(4, K1), random(N, K1)]
    with pytest.raises(ArgumentError, match=r"a1 is a tensor of shape .*allowed: \(5, 40\)"):
        reference.evaluate(program(), a, wrong)


def test_signatures_tell_factors_apart() -> None:
    spec = program()
    others = [
        replace(spec, second=second)
        for second in (None, Pair(48), Pair(K1, Major.MN), Pair(K1, b_major=Major.MN))
    ]
    assert len({signature(s) for s in (spec, *others)}) == 5
    assert spec.dtype is BF16
