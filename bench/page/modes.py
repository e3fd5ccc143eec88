"""What ours is held against in a file: those of TorchInductor's modes that ran, by name."""

from __future__ import annotations

from collections.abc import Mapping

from bench import providers
from bench.models import providers as model_providers
from bench.page.families import Measurement
from bench.report import best_of

Providers = Mapping[str, providers.Provider] | Mapping[str, model_providers.Provider]
_STOCK = "stock CUTLASS"


def known(experiment: str) -> Providers:
    """The providers that an experiment has."""
    return model_providers.PROVIDERS if experiment == "models" else providers.PROVIDERS


def yardstick(experiment: str) -> str:
    """What ours is held against in an experiment, whatever ran."""
    return _STOCK if experiment == "plain_gemm" else "Inductor"


def against(m: Measurement) -> str:
    """What ours is held against in a file."""
    if m.file.experiment == "plain_gemm":
        return _STOCK
    return best_of([title for title, _ in _ran(m)])


def note(m: Measurement) -> str:
    """Which modes ran, on how many workloads, and which did not; empty where ours is held against none."""
    if m.file.experiment == "plain_gemm":
        return ""
    baselines = [p.title for p in known(m.file.experiment).values() if p.baseline]
    ran = dict(_ran(m))
    lacking = [title for title in baselines if title not in ran]
    everywhere = len([e for e in m.entries if e.us])
    parts = [title if n == everywhere else f"{title} ({n} of {everywhere})" for title, n in ran.items()]
    text = f"The best Inductor is the best of: {', '.join(parts)}." if parts else "No mode of Inductor ran."
    return f"{text} Not run: {', '.join(lacking)}." if parts and lacking else text


def _ran(m: Measurement) -> list[tuple[str, int]]:
    """The titles of the modes with a time, each with the number of workloads that it has one of."""
    baselines = ((n, p.title) for n, p in known(m.file.experiment).items() if p.baseline)
    counts = [(title, sum(name in e.us for e in m.entries)) for name, title in baselines]
    return [(title, count) for title, count in counts if count]
