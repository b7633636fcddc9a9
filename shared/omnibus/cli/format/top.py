"""Output of ``omnibus top``, as lines for people. For programs there is ``omnibus.cluster.monitor.to_json``."""

import time
from collections.abc import Callable, Iterator, Sequence

from omnibus.cli.format import plan
from omnibus.cluster.desired import counts
from omnibus.cluster.monitor.snapshot import OptionSeen, Seen, Totals, planned, together
from omnibus.cluster.monitor.to_json import models

#: Characters of the first column that are kept even on a narrow screen.
_NAME = 12
_BAR = 10
_UNKNOWN = "   -".ljust(5 + _BAR)
_NONE = Totals(0.0, 0.0, 0, 0, None, None, {})


def lines(seen: Seen, away: Sequence[str], width: int = 100) -> Iterator[str]:
    """Everything, as lines; tables take ``width`` characters if they can. ``away`` says what cannot be reached."""
    yield from _head(seen, away)
    yield ""
    yield from _requests(seen, width)
    yield ""
    yield from _executors(seen.options(), width)


def _head(seen: Seen, away: Sequence[str]) -> Iterator[str]:
    up = seen.up()
    told = [_several(len(seen.gateways), "gateway"), _several(seen.inflight, "request") + " in flight"]
    behind = [id for id, epoch in seen.gateways.items() if seen.plan is not None and epoch != seen.plan.epoch]
    if behind:
        told.append(f"{_several(len(behind), 'gateway')} at another epoch")
    if seen.plan is not None:
        lacks = plan.lacking(counts(seen.staged.models), up) if seen.staged is not None else ""
        yield from plan.head(seen.plan, seen.staged, lacks, seen.stand.pin, seen.problems)
    else:
        yield "plan     none yet"
    yield f"now      {', '.join(told)}; {time.strftime('%H:%M:%S')}, rates over {seen.span:.0f} s"
    yield from (f"away     {each}" for each in away)


def _requests(seen: Seen, width: int) -> Iterator[str]:
    types, asked = seen.types(), planned(seen.plan)
    named: list[tuple[str, Totals, float | None]] = []
    for model in models(seen.plan, types):
        own = {kind: totals for (name, kind), totals in types.items() if name == model}
        wanted = {kind: rate for (name, kind), rate in asked.items() if name == model and rate > 0}
        named.append((model, together(own.values()), sum(wanted.values()) if wanted else None))
        named += [
            (f"  {kind or '(refused early)'}", own.get(kind, _NONE), wanted.get(kind))
            for kind in dict.fromkeys([*wanted, *own])
        ]
    every = [(totals, rate) for _, totals, rate in named]
    found = [(head, list(map(cell, every)), always) for head, cell, always in _COLUMNS]
    shown = [(head, cells) for head, cells, always in found if always or any(cells)]
    rows = [[name, *(cells[row] or "-" for _, cells in shown)] for row, (name, _, _) in enumerate(named)]
    yield from columns(["REQUESTS", *(head for head, _ in shown)], rows, width)


def _executors(options: Sequence[OptionSeen], width: int) -> Iterator[str]:
    several = {each.kind[:2] for each in options if sum(other.kind[:2] == each.kind[:2] for other in options) > 1}
    rows = []
    for each in options:
        model, option, origin = each.kind
        rows.append(
            [
                f"{model}/{option}{f'@{origin[:4]}' if each.kind[:2] in several else ''}",
                _wanted(each),
                f"{each.up}{f'+{each.leaving}' if each.leaving else ''}",
                _UNKNOWN if each.busy is None else f"{each.busy:4.0%} {_bar(each.busy)}",
                str(each.inflight),
                "-" if each.jobs is None else _rate(each.jobs),
                f"  {', '.join(each.components)}",
            ]
        )
    head = ["EXECUTORS", "wanted", "up", f"busy{' ' * (_BAR + 1)}", "in flight", "jobs/s", "  runs"]
    yield from columns(head, rows, width, words=1)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], width: int, words: int = 0) -> Iterator[str]:
    """Lines of a table of at most ``width``, if names can be cut to that: numbers to the right, the first and the last
    ``words`` columns to the left.
    """
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    left = width - sum(each + 2 for each in widths[1:])
    widths[0] = min(widths[0], max(left, _NAME))
    for row in [head, *rows]:
        cells = [short(row[0], widths[0]).ljust(widths[0])]
        for column, cell in enumerate(row[1:], 1):
            aligned = cell.ljust if column >= len(row) - words else cell.rjust
            cells.append(aligned(widths[column]))
        yield "  ".join(cells).rstrip()


def short(name: str, width: int) -> str:
    """``name`` in ``width`` characters: of a request type all parts, each a little shorter."""
    if len(name) <= width:
        return name
    parts = name.strip().split("+")
    indent = " " * (len(name) - len(name.lstrip()))
    for letters in range(max(map(len, parts)), 0, -1) if len(parts) > 1 else ():
        cut = indent + "+".join(part[:letters] for part in parts)
        if len(cut) <= width:
            return cut
    return f"{name[: width - 1]}…"


def _wanted(option: OptionSeen) -> str:
    if option.staged is None or option.staged == option.wanted:
        return str(option.wanted)
    return f"{option.wanted}>{option.staged}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _rate(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else _whole(value)


def _whole(value: float) -> str:
    return f"{value:.0f}" if value < 100_000 else f"{value / 1000:.0f}k"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _speech(value: float) -> str:
    return f"{value:.1f}x" if value else ""


def _bar(share: float) -> str:
    full = round(share * _BAR)
    return "|" * full + "." * (_BAR - full)


#: The table of requests: the name of each column, the text of a row's cell, empty for nothing, and whether the column
#: is there when nothing is in it. A row is totals and the planned rate.
_COLUMNS: Sequence[tuple[str, Callable[[tuple[Totals, float | None]], str], bool]] = (
    ("req/s", lambda row: _rate(row[0].came), True),
    ("planned", lambda row: "" if row[1] is None else _rate(row[1]), False),
    ("done/s", lambda row: _rate(row[0].done), True),
    ("failed", lambda row: str(row[0].failed), True),
    ("refused", lambda row: str(row[0].refused or ""), False),
    ("first", lambda row: _seconds(row[0].first), True),
    ("total", lambda row: _seconds(row[0].total), True),
    ("tok in/s", lambda row: _whole(row[0].quantities.get("prompt_tokens", 0.0)), True),
    ("out/s", lambda row: _whole(row[0].quantities.get("completion_tokens", 0.0)), True),
    ("speech", lambda row: _speech(row[0].quantities.get("speech_seconds", 0.0)), False),
)
