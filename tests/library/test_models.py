"""Compiled models find the kernels of their regions in the catalogues that are shipped for them."""

from __future__ import annotations

import pytest

from bench.models import MODELS
from bench.models.ahead import explained, step_of
from comfuse.library import catalogue
from comfuse.library.signature import signature
from comfuse.ops import programs


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, name",
    [
        ("bert_large", "postnorm"),
        ("graph_network", "graph-networks"),
        ("dlrm_mlp", "recsys"),
        ("olmo2_7b", "llm-blocks"),
        ("llama3_8b", "llm-blocks"),
    ],
)
def test_inference_is_served(model: str, name: str) -> None:
    """Each region that ComFuse takes, at the published sizes; planned, not compiled."""
    served = {signature(entry.spec) for entry in catalogue.read(name).entries}
    report = explained(step_of(MODELS[model], MODELS[model].real, training=False))
    specs = {row.verdict.spec for row in report.rows if row.verdict.fused}
    assert specs
    assert [text for text in specs if signature(programs.parse(text).spec) not in served] == []
