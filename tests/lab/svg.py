"""Plots as SVG: lines and bars with axes, readable on light and dark pages."""

from collections.abc import Iterator
from html import escape
from math import ceil, floor, log10

from tests.lab.experiment import Plot

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 64
#: Okabe and Ito's colours, which colour-blind readers can distinguish.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#999933")
_GREY = "#808080"


def draw_plot(plot: Plot) -> str:
    """Return ``plot`` as an SVG document."""
    scale = _PlotScale(plot)
    parts = [
        *_draw_axes(plot, scale),
        *(_draw_bars(plot, scale) if plot.kind == "bars" else _draw_lines(plot, scale)),
        *_draw_legend(plot),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(plot.title)}" font-family="sans-serif" font-size="11" fill="{_GREY}">'
    )
    return "\n".join([head, *parts, "</svg>\n"])


class _PlotScale:
    """Positions of values on the page."""

    def __init__(self, plot: Plot) -> None:
        points = [point for series in plot.series.values() for point in series]
        ys = [y for _, y in points] or [1.0]
        xs = [x for x, _ in points] or [0.0]
        self.low_x, self.high_x = (0.0, float(len(plot.groups))) if plot.kind == "bars" else (min(xs), max(xs))
        self.step = _round_step(max(ys) or 1.0)
        self.high_y = self.step * ceil((max(ys) or 1.0) / self.step - 1e-9)

    def place_x(self, value: float) -> float:
        width = (self.high_x - self.low_x) or 1.0
        return round(_LEFT + (value - self.low_x) / width * (_WIDTH - _LEFT - _RIGHT), 1)

    def place_y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / self.high_y * (_HEIGHT - _TOP - _BOTTOM), 1)


def _round_step(most: float) -> float:
    """Return a distance of grid lines: 1, 2 or 5 times a power of ten, for about five lines."""
    power: float = 10.0 ** floor(log10(most / 5))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= most / 5 - 1e-12)


def _draw_text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _draw_axes(plot: Plot, scale: _PlotScale) -> Iterator[str]:
    yield _draw_text(_WIDTH / 2, 14, plot.title, more=' font-size="13"')
    for number in range(round(scale.high_y / scale.step) + 1):
        y = scale.place_y(number * scale.step)
        yield f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="{_GREY}" stroke-opacity=".3"/>'
        yield _draw_text(_LEFT - 6, y + 4, f"{number * scale.step:g}", "end")
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    yield _draw_text(14, middle, plot.y, more=f' transform="rotate(-90 14 {middle})"')
    yield _draw_text(_WIDTH / 2, _HEIGHT - _BOTTOM + 30, plot.x)
    for x, label in _x_labels(plot, scale):
        yield _draw_text(x, _HEIGHT - _BOTTOM + 15, label)


def _x_labels(plot: Plot, scale: _PlotScale) -> Iterator[tuple[float, str]]:
    if plot.kind == "bars":
        yield from ((scale.place_x(at + 0.5), name) for at, name in enumerate(plot.groups))
        return
    for part in range(6):
        value = scale.low_x + part / 5 * (scale.high_x - scale.low_x)
        yield scale.place_x(value), f"{value:.3g}"


def _draw_lines(plot: Plot, scale: _PlotScale) -> Iterator[str]:
    for number, series in enumerate(plot.series.values()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(scale.place_x(x), scale.place_y(y)) for x, y in series]
        path = "L".join(f"{x} {y}" for x, y in places)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        if len(places) <= 40:
            yield from (f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places)


def _draw_bars(plot: Plot, scale: _PlotScale) -> Iterator[str]:
    each = 0.8 / max(1, len(plot.series))
    for number, series in enumerate(plot.series.values()):
        for group, y in series:
            left, right = (scale.place_x(group + 0.1 + each * at) for at in (number, number + 1))
            top = scale.place_y(y)
            yield (
                f'<rect x="{left}" y="{top}" width="{round(right - left - 1, 1)}" '
                f'height="{round(_HEIGHT - _BOTTOM - top, 1)}" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
            )


def _draw_legend(plot: Plot) -> Iterator[str]:
    x, y = float(_LEFT), _HEIGHT - 16
    for number, name in enumerate(plot.series):
        colour = _COLOURS[number % len(_COLOURS)]
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        yield _draw_text(x + 14, y, name, "start")
        x += 26 + 6.2 * len(name)
