"""The table of a model's GEMMs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

import comfuse
from comfuse import fallbacks
from comfuse.errors import DeviceError
from comfuse.explain import Explanation
from comfuse.generator.chain import ChainSpec
from comfuse.inductor import log
from comfuse.inductor.policy import Policy
from comfuse.inductor.report import Report, explain_model
from tests.inductor.regions import half

FORCED = Policy(force=True, gpu="h200")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    fallbacks.reset()
    yield
    fallbacks.reset()


class Block(nn.Module):
    """Two layers, the second with a residual and a norm behind it, and a buffer that each call counts up."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128, dtype=torch.bfloat16)
        self.down = nn.Linear(128, 64, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(64, dtype=torch.bfloat16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.calls += 1
        h = F.dropout(F.gelu(self.up(x)), 0.1, self.training)
        return self.norm(x + scale * self.down(h))


def test_one_row_a_gemm() -> None:
    report = explain_model(Block().eval(), half(96, 64), policy=FORCED)
    assert [row.module for row in report.rows] == ["up", "down"]
    assert {row.graph for row in report.rows} == {"forward"}
    up, down = (row.verdict for row in report.rows)
    assert up.shape == (96, 128, 64)
    assert down.shape == (96, 64, 128)
    assert up.fused
    assert down.fused
    assert report.fused == 2
    assert (up.chain, down.chain) == (("addmm_1",), ("addmm",))
    assert up.spec == down.spec
    assert (up.reductions, down.reductions) == (1, 1)
    assert [link.n for link in ChainSpec.parse(down.spec).links] == [128, 64]
    assert down.location is not None
    assert "test_report.py:" in down.location
    assert down.predicted_us is not None
    assert down.unfused_us is not None
    assert report.rows[0].measured_us is None
    assert report.notes == ()


def test_the_table_has_a_line_for_each_gemm() -> None:
    report = comfuse.explain(Block().eval(), half(96, 64), gpu="h200")
    assert isinstance(report, Report)
    title, _, header, *lines = str(report).splitlines()
    assert title == f"Block: 2 GEMMs, {report.fused} fused"
    assert header.split()[:3] == ["graph", "module", "where"]
    assert "measured" not in header
    assert len(lines) == 2
    for line, row in zip(lines, report.rows, strict=True):
        verdict = "fused" if row.verdict.fused else "left: " + row.verdict.reason[:40]
        assert verdict in line
        assert f"{row.verdict.predicted_us:.1f}" in line
        assert "96, " in line
        assert "inductor/test_report.py:" in line


def test_training_shows_the_backward_graph() -> None:
    report = explain_model(Block().train(), half(96, 64), training=True, policy=FORCED)
    graphs = [row.graph for row in report.rows]
    assert graphs == ["forward"] * 2 + ["backward"] * 3  # x needs no gradient
    backward = [row for row in report.rows if row.graph == "backward"]
    assert [row.module for row in backward] == ["down", "down", "up"]
    assert any(row.verdict.fused for row in backward)
    left = [row.verdict for row in backward if not row.verdict.fused]
    assert left
    assert all(verdict.reason for verdict in left)


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = Block().train()
    x = half(96, 64).requires_grad_()
    before, state = x.detach().clone(), torch.random.get_rng_state()
    log.clear()
    explain_model(model, x, training=training, policy=FORCED)
    assert model.calls == 0
    assert model.training
    assert torch.equal(x, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert x.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert log.verdicts() == []  # nothing was compiled


def test_it_does_not_run_the_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    from comfuse.inductor import jit

    monkeypatch.setattr(jit, "runs_on_gpu", lambda region: True)
    monkeypatch.setattr(jit, "tasks_of", lambda region: pytest.fail("looked for kernels"))
    report = explain_model(Block().eval(), half(96, 64), policy=FORCED)
    assert report.fused == 2


def test_it_says_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from comfuse.library.tuned import table
    from comfuse.ops import programs
    from comfuse.tune import Target, tune
    from tests.tune.fake import FakeGpu

    monkeypatch.setenv("COMFUSE_CHAINS", "0")  # of these nothing is measured
    report = explain_model(Block().eval(), half(96, 64), policy=FORCED)
    assert report.notes == ()
    verdict = report.rows[0].verdict
    target = Target("first", programs.parse(verdict.spec).spec, (int(verdict.shape[0]),))
    table.update(tmp_path / "tuned.json", [tune(target, FakeGpu()).entry])
    monkeypatch.setenv("COMFUSE_TUNED", str(tmp_path / "tuned.json"))
    report = explain_model(Block().eval(), half(96, 64), policy=FORCED)
    said = "1 of 2 kernels were chosen by measurement, the rest by the cost model"
    assert report.notes == (said,)
    assert said in str(report)


def test_keywords_and_modules_that_are_compiled_already() -> None:
    model = Block().eval()
    report = comfuse.explain(torch.compile(model), half(96, 64), scale=0.5)
    assert isinstance(report, Report)
    assert report.title == "Block"
    assert len(report.rows) == 2


def test_a_function_with_several_gemms() -> None:
    def mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.relu(x @ up) @ down

    given = half(96, 64), half(64, 128), half(128, 64)
    report = comfuse.explain(mlp, *given, training=False)
    assert isinstance(report, Report)
    assert report.title == "mlp"
    assert [row.verdict.shape for row in report.rows] == [(96, 128, 64), (96, 64, 128)]
    assert isinstance(comfuse.explain(mlp, *given), Explanation)  # as one kernel, which it is not
    with pytest.raises(TypeError, match="scale"):
        comfuse.explain(mlp, *given, scale=1)


def test_the_fast_path_of_torchs_own_encoder_is_named() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dtype=torch.bfloat16).eval()
    x = half(2, 24, 64)
    hidden = explain_model(layer, x, policy=FORCED)
    assert hidden.rows == ()
    assert "set_fastpath_enabled(False)" in str(hidden)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        torch._dynamo.reset()
        shown = explain_model(layer, x, policy=FORCED)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert len(shown.rows) >= 4
    assert shown.notes == ()
    assert "linear2" in [row.module for row in shown.rows]


def test_graph_breaks_and_what_has_no_graph_are_said() -> None:
    def broken(x: Tensor, w: Tensor) -> Tensor:
        y = F.relu(x @ w)
        torch._dynamo.graph_break()
        return y @ w

    report = explain_model(broken, half(96, 64), half(64, 64), policy=FORCED)
    assert [row.graph for row in report.rows] == ["forward 1", "forward 2"]
    assert "breaks it into 2 graphs" in str(report)
    none = explain_model(lambda x: x, half(4, 4), policy=FORCED)
    assert none.rows == ()
    assert "traces no graph" in str(none)


def test_graphs_within_graphs_are_shown() -> None:
    block = Block()

    def checkpointed(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(block.down, F.relu(block.up(x)), use_reentrant=False)

    def conditional(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: F.gelu(block.up(x)), lambda x: F.relu(block.up(x)), (x,))

    report = explain_model(checkpointed, half(96, 64), policy=FORCED)
    assert len(report.rows) == 2
    torch._dynamo.reset()
    report = explain_model(conditional, half(96, 64), policy=FORCED)
    assert [row.graph for row in report.rows] == ["inner forward 1", "inner forward 2"]
    assert all(row.verdict.fused for row in report.rows)
    assert report.notes == ()


def test_sizes_are_symbolic_where_they_are_marked_and_nowhere_else() -> None:
    model = Block().eval()
    for rows in (96, 80, 64):
        report = explain_model(model, half(rows, 64), policy=FORCED)
        assert report.rows[0].verdict.shape == (rows, 128, 64)
    x = half(48, 64)
    torch._dynamo.mark_dynamic(x, 0)
    report = explain_model(model, x, policy=FORCED)
    assert isinstance(report.rows[0].verdict.shape[0], str)
    assert report.fused == 2


def test_gemms_that_no_kernel_takes_are_rows_too() -> None:
    report = explain_model(lambda x, w: F.relu(x @ w), torch.randn(8, 8), torch.randn(8, 8), policy=FORCED)
    (row,) = report.rows
    assert not row.verdict.fused
    assert "float32" in row.verdict.reason


def test_models_on_the_meta_device_take_no_memory() -> None:
    with torch.device("meta"):
        layer = nn.Sequential(nn.Linear(1024, 1024), nn.LayerNorm(1024)).to(torch.bfloat16)
        x = torch.empty(16384, 1024, dtype=torch.bfloat16)
    report = explain_model(layer, x, policy=Policy(gpu="h200"))
    (row,) = report.rows
    assert row.verdict.fused
    assert row.verdict.shape == (16384, 1024, 1024)


class Scaled(nn.Module):
    """A product, numbers in tensors, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)
        self.register_buffer("scale", torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x) * self.scale + torch.tensor(0.5, dtype=x.dtype, device="cpu"))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_numbers_in_tensors_are_fused_or_constants(device: str) -> None:
    model = Scaled().to(device, torch.bfloat16)
    (row,) = explain_model(model, half(96, 64).to(device), policy=FORCED).rows
    assert row.verdict.fused
    assert row.verdict.reductions == 1


def test_a_number_that_only_the_host_has_is_named() -> None:
    model = Scaled().to("meta", torch.bfloat16)
    model.scale = torch.tensor(0.7)
    (row,) = explain_model(model, half(96, 64).to("meta"), policy=FORCED).rows
    assert "in CPU memory" in row.verdict.reason


@pytest.mark.parametrize("width, attention", [(64, "cudnn"), (192, "flash")])
@pytest.mark.parametrize("training", [False, True])
def test_attention_on_the_meta_device_is_that_of_a_gpu(width: int, attention: str, training: bool) -> None:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(4 * width, 4, 256, dtype=torch.bfloat16)
        x = torch.empty(128, 4, 4 * width, dtype=torch.bfloat16, requires_grad=training)
    report = explain_model(layer.train(), x, training=training, policy=FORCED)
    assert len(report.rows) == (12 if training else 4)
    assert not any("bmm" in row.verdict.anchor for row in report.rows)
    assert f"_scaled_dot_product_{attention}_attention" in report.rows[0].verdict.reason
    assert F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


def test_random_numbers_without_memory_are_drawn_as_on_a_gpu() -> None:
    """Each dropout by itself."""
    layers = (nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64), nn.Dropout(0.1))
    model = nn.Sequential(*layers).to(torch.bfloat16).train()
    found = []
    for device in ("cpu", "meta"):
        x = half(96, 64).to(device).requires_grad_()
        rows = explain_model(model.to(device), x, training=True, policy=FORCED).rows
        found.append([(row.module, row.verdict.spec, row.verdict.predicted_us) for row in rows])
    assert found[0] == found[1]


def test_masks_and_grouped_heads_on_the_meta_device() -> None:
    def attend(x: Tensor, w: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        q = (x @ w).view(2, 128, 8, -1).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, k, mask, enable_gqa=True)

    for width, masked, attention in [(64, True, "cudnn"), (256, True, "efficient"), (256, False, "flash")]:
        with torch.device("meta"):
            given = torch.empty(2, 128, 512), torch.empty(512, 8 * width), torch.empty(2, 2, 128, width)
            mask = torch.empty(128, 128, dtype=torch.bool) if masked else None
        report = explain_model(attend, *(x.bfloat16() for x in given), mask, policy=FORCED)
        (row,) = report.rows
        assert f"_scaled_dot_product_{attention}_attention" in row.verdict.reason, (width, masked)


def test_run_time_fallbacks_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMFUSE_STRICT", raising=False)
    fallbacks.record("comfuse::region", "no compiler")
    report = explain_model(Block().eval(), half(96, 64), policy=FORCED)
    assert report.fallbacks == {("comfuse::region", "no compiler"): 1}
    assert str(report).endswith("1 x comfuse::region: no compiler")


def test_times_need_a_gpu() -> None:
    with pytest.raises(DeviceError, match="cpu"):
        comfuse.explain(Block().eval(), half(96, 64), measure=True)


def test_measured_times_are_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from comfuse.inductor import measure

    seen: list[Any] = []

    def times(candidate: Any) -> dict[str, float]:
        seen.append(candidate.anchors[0].name)
        return {"measured_us": 1.5, "unfused_measured_us": 2.5}

    monkeypatch.setattr(measure, "check_device", lambda arguments: None)
    monkeypatch.setattr(measure, "times", times)
    report = comfuse.explain(Block().eval(), half(96, 64), measure=True)
    assert isinstance(report, Report)
    assert seen == ["addmm"]  # both are one kernel
    assert [(row.measured_us, row.unfused_measured_us) for row in report.rows] == [(1.5, 2.5)] * 2
    assert "Inductor measured us" in str(report)


def test_what_is_measured_is_what_was_decided_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the longer region, or the chain, that was looked at first."""
    from comfuse.inductor import measure
    from comfuse.inductor.lowerer import lowered

    specs: list[str] = []

    def times(candidate: Any) -> dict[str, float]:
        specs.append(lowered(candidate).lowered.spec.text())
        return {}

    monkeypatch.setattr(measure, "check_device", lambda arguments: None)
    monkeypatch.setattr(measure, "times", times)
    sizes = ((128, 256), (8192, 256), (256, 8192))
    tensors = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes]
    report = comfuse.explain(_two_layers, *tensors, measure=True)
    assert isinstance(report, Report)
    assert all("a kernel for each GEMM is faster" in row.verdict.apart for row in report.rows)
    assert specs == [row.verdict.spec for row in report.rows]


def _two_layers(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
    return F.gelu(F.gelu(F.linear(x, w0)) @ w1.t())
