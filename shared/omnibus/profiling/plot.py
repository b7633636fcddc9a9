"""Plot of throughput against load, as an SVG written without dependencies."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from omnibus.profile import ModelProfile, Point

#: Colours that remain distinct with red-green colour blindness.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#444444")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 440, 64, 56, 56
_LABEL_WIDTH_PIXELS = 150  # width of the labels at the right
_LABEL_HEIGHT_PIXELS = 16  # height of a label
_TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class _Scale(NamedTuple):
    """Maps requests at a time (log scale) and req/s to pixels."""

    most: int
    top: float

    def x(self, at_once: float) -> float:
        return LEFT + (WIDTH - LEFT - _LABEL_WIDTH_PIXELS) * math.log2(at_once) / max(1.0, math.log2(self.most))

    def y(self, rate: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - rate / self.top)


def render_svg(profile: ModelProfile) -> str:
    """Draw the curve of each measured option."""
    curves = {name: option.curve for name, option in profile.options.items() if option.curve}
    points = [point for curve in curves.values() for point in curve]
    every = _nice_step(max((point.rate for point in points), default=1.0) / 5)
    top = every * math.ceil(max((point.rate for point in points), default=1.0) / every)
    scale = _Scale(max((point.at_once for point in points), default=1), top)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="#222">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            _text_element(LEFT, 22, f"{profile.model}: throughput against load, one replica of each option", size=15),
            _text_element(LEFT, 40, f"{profile.workload}; {profile.machine}", colour="#666"),
            *_draw_axes(scale, every),
            *_draw_curves(curves, scale),
            "</svg>\n",
        ]
    )


def _draw_axes(scale: _Scale, every: float) -> Iterator[str]:
    for step in range(round(scale.top / every) + 1):
        y = scale.y(step * every)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - _LABEL_WIDTH_PIXELS}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text_element(LEFT - 8, y + 4, f"{step * every:g}", anchor="end")
    for power in range(round(math.log2(scale.most)) + 1):
        x = scale.x(2**power)
        yield f'<line x1="{x:.1f}" y1="{HEIGHT - BOTTOM}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM + 5}" stroke="#888"/>'
        yield _text_element(x, HEIGHT - BOTTOM + 20, str(2**power), anchor="middle")
    middle = (LEFT + WIDTH - _LABEL_WIDTH_PIXELS) / 2
    yield _text_element(middle, HEIGHT - 12, "requests at a time", anchor="middle")
    up = (TOP + HEIGHT - BOTTOM) / 2
    yield f'<g transform="rotate(-90 16 {up})">{_text_element(16, up + 4, "requests per second", anchor="middle")}</g>'


def _draw_curves(curves: Mapping[str, Sequence[Point]], scale: _Scale) -> Iterator[str]:
    ends = {name: scale.y(curve[-1].rate) for name, curve in curves.items()}
    heights = _spread_labels(ends)
    for index, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        dashes = ("", "6 3", "2 3")[index // len(COLOURS) % 3]
        places = [(scale.x(point.at_once), scale.y(point.rate)) for point in curve]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
        x, y = places[-1]
        at = WIDTH - _LABEL_WIDTH_PIXELS + 14
        yield (
            f'<polyline points="{x + 5:.1f},{y:.1f} {at - 4:.1f},{heights[name]:.1f}" fill="none" stroke="{colour}" '
            'stroke-width="0.7" stroke-dasharray="1 3"/>'
        )
        best = max(point.rate for point in curve)
        yield _text_element(at, heights[name] + 4, f"{_short_name(name)}  {best:.3g}", colour=colour, weight="bold")


def _spread_labels(ends: Mapping[str, float]) -> dict[str, float]:
    """Return heights of labels near their curves' ends, without overlaps."""
    heights: dict[str, float] = {}
    floor = 0.0
    for name in sorted(ends, key=lambda name: ends[name]):
        heights[name] = floor = max(ends[name], floor)
        floor += _LABEL_HEIGHT_PIXELS
    over = max(0.0, floor - _LABEL_HEIGHT_PIXELS - (HEIGHT - BOTTOM))
    return {name: height - over for name, height in heights.items()}


def _nice_step(value: float) -> float:
    """Round ``value`` up to 1, 2, 2.5, 5 or 10 times a power of ten."""
    unit = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(unit * step for step in _TICK_STEPS if unit * step >= value * 0.999)


def _short_name(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def _text_element(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, colour: str = "#222", weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{bold}>'
        f"{escape(words)}</text>"
    )
