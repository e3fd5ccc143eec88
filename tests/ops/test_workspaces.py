"""The workspaces that the binding gives to launches: whose they are, and when they are made."""

from __future__ import annotations

import ctypes
from itertools import count

import torch

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec
from tests.ops.host_binding import Host

BF16 = DType.BF16
K = 32
# A spec of its own for each test, since nothing is ever taken out of the table.
_SIZES = count(16, 8)


def linear() -> FusedSpec:
    return catalog.linear(next(_SIZES), K, BF16, out=DType.FP16)


def launches(host: Host, spec: FusedSpec, rows: list[int]) -> list[int | None]:
    host.launched.clear()
    for m in rows:
        host.call(spec, torch.zeros(m, K).bfloat16(), torch.zeros(spec.n, K).bfloat16())
    return [launch.workspace for launch in host.launched]


def test_kept_by_kernel_stream_and_row_blocks(host: Host) -> None:
    spec = linear()
    host.register(spec, workspace=64)
    first, second, third, fourth = launches(host, spec, [256, 128, 256, 200])
    assert first == third == fourth != second
    host.library.fake_set_stream(0x30)
    (other,) = launches(host, spec, [256])
    assert other not in (first, second)
    host.library.fake_set_stream(0x10)
    assert launches(host, spec, [256]) == [first]
    another = linear()
    host.register(another, workspace=64)
    assert launches(host, another, [256]) != [first]


def test_kept_by_the_row_blocks_of_all_batches(host: Host) -> None:
    b = SpecBuilder(24, K, BF16, batched=True)
    b.output("y", b.op("mul", b.gemm(), b.const(1.0 + next(_SIZES) / 1024)), BF16)
    spec = b.spec()
    host.register(spec, workspace=64)
    weight = torch.zeros(24, K).bfloat16()
    for batches, m in ((2, 256), (4, 128), (1, 512), (4, 1), (3, 128)):
        host.call(spec, torch.zeros(batches, m, K).bfloat16(), weight)
    first, *rest, last = (launch.workspace for launch in host.launched)
    assert rest == [first] * 3
    assert last != first


def test_zeroed_when_made(host: Host) -> None:
    spec = linear()
    host.register(spec, workspace=4096)
    (workspace,) = launches(host, spec, [128])
    assert workspace is not None
    assert ctypes.string_at(workspace, 4096) == bytes(4096)


def test_the_oldest_go_when_there_are_too_many(host: Host) -> None:
    spec = linear()
    host.register(spec, workspace=100 << 20)
    launches(host, spec, [128])
    launches(host, spec, [256])  # 300 MiB in all: the first is released
    assert len(set(launches(host, spec, [256, 256]))) == 1


def test_a_captured_launch_owns_its_workspace(host: Host) -> None:
    spec = linear()
    host.register(spec, workspace=64)
    (eager,) = launches(host, spec, [128])
    host.library.fake_set_capturing(1)
    captured = launches(host, spec, [128, 128])
    assert len({eager, *captured}) == 3
    host.library.fake_set_capturing(0)
    assert launches(host, spec, [128]) == [eager]
    assert host.library.fake_relaxed_depth() == 0
    # The end of the graph makes its buffers free for another one, of the same size.
    host.library.fake_destroy_graphs()
    allocations = host.library.fake_allocations()
    host.library.fake_set_capturing(1)
    assert set(launches(host, spec, [128, 128])) == set(captured)
    assert host.library.fake_allocations() == allocations
    launches(host, spec, [128])
    assert host.library.fake_allocations() == allocations + 1
