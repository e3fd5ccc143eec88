"""Whole blocks of models, in inference and in training.  Pure data: nothing here needs torch or a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.workloads.base import Target


@dataclass(frozen=True)
class ModelWorkload:
    """A model of ``bench.models.MODELS`` at its published size.

    ``goal``: at least this speedup over the best Inductor; 1.0 where it only must not be slower.
    """

    model: str
    training: bool = False
    goal: float = 1.0

    @property
    def target(self) -> Target:
        return Target(self.goal, "inductor")

    @property
    def name(self) -> str:
        """Unique, without spaces."""
        return f"{self.model}-{'training' if self.training else 'inference'}"


# Those with the strictest goals first: a run that is cut short has measured them.
MODEL_WORKLOADS = (
    ModelWorkload("bert_large", goal=1.12),
    ModelWorkload("bert_large", training=True, goal=1.08),
    ModelWorkload("encoder_layer", goal=1.2),
    ModelWorkload("graph_network", goal=1.5),
    ModelWorkload("olmo2_7b", goal=1.03),
    ModelWorkload("gemma2_9b", goal=1.03),
    ModelWorkload("llama3_8b", goal=1.03),
    ModelWorkload("dlrm_mlp", training=True),
    ModelWorkload("gpt2"),
    ModelWorkload("encoder_layer", training=True),
    ModelWorkload("graph_network", training=True),
    ModelWorkload("gpt2", training=True),
)


def select_models(wanted: Iterable[str] = ()) -> tuple[ModelWorkload, ...]:
    """The workloads of these names, or of these models; all of them if none is named.

    Raises:
        ValueError: there is no workload and no model of a name.
    """
    names = set(wanted)
    unknown = names - {n for w in MODEL_WORKLOADS for n in (w.name, w.model)}
    if unknown:
        known = ", ".join(w.name for w in MODEL_WORKLOADS)
        raise ValueError(f"no workload or model {min(unknown)!r}; there are {known}")
    return tuple(w for w in MODEL_WORKLOADS if not names or names & {w.name, w.model})
