"""What the tuner did, for people."""

from __future__ import annotations

from comfuse.tune.candidates import Candidates
from comfuse.tune.tuner import Outcome, Target

_HEADER = ("plan", "predicted us", "measured us", "to the best", "rounds", "")


def outcome_text(outcome: Outcome) -> list[str]:
    """A target's plans, the fastest first, then those that were not timed with the reason."""
    entry, race, considered = outcome.entry, outcome.race, outcome.candidates
    plans = {p.label: p for p in considered.kept}
    cells = [_HEADER]
    for label in race.order:
        rounds = len(race.samples[label])
        said = "chosen" if label == race.winner else ""
        if label in race.dropped:
            said = f"dropped after {race.dropped[label]} rounds"
        predicted, us = plans[label].predicted_us, race.us(label)
        cells.append((label, f"{predicted:.1f}", f"{us:.2f}", f"{race.ratio(label):.3f}", str(rounds), said))
    lines = [title(entry.label, entry.m, entry.gpu), *_aligned(cells)]
    for failure in outcome.failures:
        lines.append(f"  {failure.plan.label}: {'WRONG: ' if failure.wrong else ''}{failure.reason}")
    lines += _left_out(considered)
    lines.append(f"  {_against_the_model(outcome)}")
    lines.append(f"  error of the chosen {entry.error:.2e} against float64, {entry.allowed:.2e} allowed")
    return lines


def _against_the_model(outcome: Outcome) -> str:
    race, label = outcome.race, outcome.candidates.by_model
    if label == race.winner:
        return "the cost model would choose the same"
    if label not in race.samples:
        return f"the cost model would choose {label}, which was not timed"
    return f"the cost model would choose {label}, {100 * (race.ratio(label) - 1):.1f} % slower"


def candidates_text(target: Target, considered: Candidates, gpu: str) -> list[str]:
    """What would be timed, and what would not."""
    lines = [title(target.label, target.m, gpu)]
    lines += [f"  {p.label}: predicted {p.predicted_us:.1f} us" for p in considered.kept]
    return [*lines, *_left_out(considered)]


def not_tuned_text(target: Target, gpu: str, reason: Exception) -> str:
    return f"{title(target.label, target.m, gpu)}\n  not tuned: {reason}\n"


def title(label: str, m: int, gpu: str) -> str:
    return f"{label}, M = {m}, {gpu}"


def _left_out(considered: Candidates) -> list[str]:
    lines = [f"  {p.label}: not timed, predicted {p.predicted_us:.1f} us" for p in considered.pruned]
    return lines + [f"  {r.shape.name}: {r.reason}" for r in considered.refused]


def _aligned(cells: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for plan, *numbers, said in cells:
        middle = [number.rjust(width) for number, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join(["", plan.ljust(widths[0]), *middle, said]).rstrip())
    return lines
