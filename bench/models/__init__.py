"""Models as they are published, for the benches and for the tests: one definition each."""

from __future__ import annotations

from bench.models.base import Model, Size, without_dropout
from bench.models.language import LANGUAGE
from bench.models.networks import NETWORKS
from bench.models.step import Step

__all__ = ["MODELS", "Model", "Size", "Step", "without_dropout"]

MODELS: dict[str, Model] = {m.name: m for m in (*NETWORKS, *LANGUAGE)}
