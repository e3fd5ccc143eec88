"""The plots as SVG to stand inside a page: colours of the page, a title for each point to hover over."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Iterable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from bench import providers
from bench.page.files import ranges
from bench.page.model import Point
from bench.page.roofline import Dot, ceiling

_INK = "#010203"  # drawn in the colour of the text around it, light or dark
# Okabe and Ito's palette, of which these are legible on white and on black alike.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
_MARKERS = "osD^vPX"
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}


def roofline(name: str, dots: Sequence[Dot]) -> str:
    """Achieved TFLOP/s over flops a byte, both logarithmic, beneath the GPU's ceilings; not empty."""
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure, axes = _figure()
        ridges = [d.gpu.flops / d.gpu.bandwidth for d in dots]
        low = min(*ridges, *(d.intensity for d in dots)) / 1.6
        high = max(*ridges, *(d.intensity for d in dots)) * 1.6
        for gpu in dict.fromkeys(d.gpu for d in dots):
            edges = [low, gpu.flops / gpu.bandwidth, high]
            axes.plot(
                edges,
                [ceiling(gpu, x) for x in edges],
                color=_INK,
                label=f"{gpu.name}: {gpu.bandwidth / 1e12:.2f} TB/s, {gpu.flops / 1e12:.0f} TFLOP/s",
            )
        titles = {}
        for i, d in enumerate(dots):
            colour, marker = _look(d.provider)
            titles[_point(axes, i, d.intensity, d.teraflops, colour, marker)] = (
                f"{d.workload}, {d.provider}: {d.teraflops:.1f} TFLOP/s at {d.intensity:.1f} flop/byte, "
                f"{d.file.path.name} lines {ranges(d.lines)}"
            )
        for provider in _order(d.provider for d in dots):
            colour, marker = _look(provider)
            axes.plot([], [], marker, color=colour, label=_title(provider))
        axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity, flop/byte", ylabel="TFLOP/s")
        _ticks(axes.xaxis, low, high)
        speeds = [d.teraflops for d in dots]
        _ticks(axes.yaxis, min(speeds) / 1.2, max(max(speeds), max(d.ceiling for d in dots)) * 1.2)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)
        return _svg(figure, f"roofline-{name}", titles)


def predictions(points: Sequence[Point]) -> str:
    """Predicted over measured time, both logarithmic: colours by family, markers by schedule; not empty."""
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "predictions"}):
        figure, axes = _figure()
        times = [t for p in points for t in (p.predicted_us, p.measured_us)]
        low, high = min(times) / 1.2, max(times) * 1.2
        axes.plot([low, high], [low, high], color=_INK, linewidth=1, label="as predicted")
        for factor in (1.15, 1 / 1.15):
            label = "15 % off" if factor > 1 else None
            axes.plot([low, high], [low * factor, high * factor], ":", color=_INK, linewidth=1, label=label)
        families = list(dict.fromkeys(p.family for p in points))
        schedules = list(dict.fromkeys(p.schedule for p in points))
        titles = {}
        for i, p in enumerate(points):
            colour = _COLOURS[families.index(p.family) % len(_COLOURS)]
            marker = _MARKERS[schedules.index(p.schedule) % len(_MARKERS)]
            titles[_point(axes, i, p.measured_us, p.predicted_us, colour, marker)] = (
                f"{p.workload}, {p.provider} ({p.plan}): predicted {p.predicted_us:.1f} us, measured "
                f"{p.measured_us:.1f} us, {100 * p.error:+.1f} %, {p.file.path.name} lines {ranges(p.lines)}"
            )
        for i, family in enumerate(families):
            axes.plot([], [], "s", color=_COLOURS[i % len(_COLOURS)], label=family)
        for i, schedule in enumerate(schedules):
            axes.plot([], [], _MARKERS[i % len(_MARKERS)], color=_INK, markerfacecolor="none", label=schedule)
        axes.set(xscale="log", yscale="log", xlabel="measured, us", ylabel="predicted, us")
        _ticks(axes.xaxis, low, high)
        _ticks(axes.yaxis, low, high)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)
        return _svg(figure, "predictions", titles)


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(True, which="major", alpha=0.25, color=_INK, linewidth=0.5)
    axes.patch.set_alpha(0.0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _point(axes: Axes, i: int, x: float, y: float, colour: str, marker: str) -> str:
    """Draws one point; the name of its group in the SVG."""
    name = f"point-{i}"
    axes.plot([x], [y], marker, color=colour, markersize=5, alpha=0.85, gid=name)
    return name


def _ticks(axis: Axis, low: float, high: float) -> None:
    """Plain numbers at 1, 2 and 5 of each power of ten, between limits."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    axis.set_ticks(marks, [f"{m:g}" for m in marks])
    axis.set_ticks([], minor=True)
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})


def _order(names: Iterable[str]) -> list[str]:
    """Providers in the bench's order, unknown ones last."""
    found = set(names)
    return [n for n in providers.PROVIDERS if n in found] + sorted(found - set(providers.PROVIDERS))


def _look(provider: str) -> tuple[str, str]:
    """Colour and marker, the same on every plot."""
    known = list(providers.PROVIDERS)
    i = known.index(provider) if provider in known else len(known)
    return _COLOURS[i % len(_COLOURS)], _MARKERS[(i + i // len(_COLOURS)) % len(_MARKERS)]


def _title(provider: str) -> str:
    known = providers.PROVIDERS.get(provider)
    return known.title if known is not None else provider


def _svg(figure: Figure, name: str, titles: dict[str, str]) -> str:
    """The figure as an element of HTML: no prolog, no metadata, ids of its own, a title for each point."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace(_INK, "currentColor")
    for point, title in titles.items():
        opening = f'<g id="{point}">'
        assert opening in text
        text = text.replace(opening, f"{opening}<title>{html.escape(title)}</title>", 1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
