"""Output of ``omnibus top``, as lines for people. For programs, use ``omnibus.cluster.monitor.to_json``.

Nodes and links of ``omnibus top``, as lines for people.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from omnibus.cli.format import plan
from omnibus.cli.format.plan import age_text
from omnibus.cli.format.tables import column_lines, size_text
from omnibus.cluster.monitor.snapshot import OptionState, SystemState, Totals, planned_rates, sum_totals
from omnibus.cluster.monitor.to_json import model_names, node_values
from omnibus.cluster.nodes import NodeLink
from omnibus.cluster.presence import replica_counts

#: Characters always shown of the name of a node or link: names of machines differ at their ends.
_NAME_CHARS = 60


def node_lines(system: SystemState, width: int) -> Iterator[str]:
    """Yield tables of nodes and links, nothing for fewer than two nodes."""
    nodes = node_values(system)
    if len(nodes) < 2:
        return
    yield ""
    head = ["NODES", "state", "started", "arena used", "executors", "gateways", "  address"]
    yield from column_lines(head, [_node_row(node) for node in nodes], width, words=1, least=_NAME_CHARS)
    links = system.nodes.links()
    if links:
        yield ""
        head = ["LINKS", "now", "in all", "at", "  state"]
        yield from column_lines(head, [_link_row(link) for link in links], width, words=1, least=_NAME_CHARS)


def _node_row(node: dict[str, Any]) -> list[str]:
    arena = f"{node['used'] / node['size']:.0%} of {size_text(node['size'])}" if node["size"] else "-"
    transport = "" if node["transport"] in ("", "tcp") else f" ({node['transport'].upper()})"
    address = f"  {node['address']}{transport}"
    return [
        node["node"],
        node["state"],
        age_text(node["started"]) if node["started"] else "-",
        arena,
        str(len(node["executors"])),
        str(len(node["gateways"])),
        address.rstrip(),
    ]


def _link_row(link: NodeLink) -> list[str]:
    speed = f"{size_text(link.nbytes / link.seconds)}/s" if link.seconds else "-"
    return [
        f"{link.source} → {link.reader}",
        "-" if link.rate is None else f"{size_text(link.rate)}/s",
        size_text(link.nbytes),
        speed,
        "  unreachable" if link.unreachable else "  ok",
    ]


_BAR_CHARS = 10
_UNKNOWN = "   -".ljust(5 + _BAR_CHARS)
_NONE = Totals(0.0, 0.0, 0, 0, None, None, {})


def top_lines(system: SystemState, away: Sequence[str], width: int = 100) -> Iterator[str]:
    """Yield all of the output. Tables fit ``width`` characters if possible, 0 for any.

    ``away`` contains the problems with unreachable services.
    """
    yield from _state_lines(system, away)
    yield ""
    yield from _request_lines(system, width)
    yield ""
    yield from _executor_lines(system.option_states(), width)
    yield from node_lines(system, width)


def _state_lines(system: SystemState, away: Sequence[str]) -> Iterator[str]:
    up = system.ready_counts()
    parts = [_count_text(len(system.gateways), "gateway"), _count_text(system.inflight, "request") + " in flight"]
    behind = [id for id, epoch in system.gateways.items() if system.plan is not None and epoch != system.plan.epoch]
    if behind:
        parts.append(f"{_count_text(len(behind), 'gateway')} at another epoch")
    if system.plan is not None:
        lacks = plan.missing_executors(replica_counts(system.staged.models), up) if system.staged is not None else ""
        yield from plan.state_lines(system.plan, system.staged, lacks, system.stand.pin, system.problems)
    else:
        yield "plan     none yet"
    yield f"now      {', '.join(parts)}; {time.strftime('%H:%M:%S')}, rates over {system.span:.0f} s"
    yield from (f"away     {each}" for each in away)


def _request_lines(system: SystemState, width: int) -> Iterator[str]:
    types, plan_rates = system.type_totals(), planned_rates(system.plan)
    entries: list[tuple[str, Totals, float | None]] = []
    for model in model_names(system.plan, types):
        own = {kind: totals for (name, kind), totals in types.items() if name == model}
        expected_rates = {kind: rate for (name, kind), rate in plan_rates.items() if name == model and rate > 0}
        entries.append((model, sum_totals(own.values()), sum(expected_rates.values()) if expected_rates else None))
        entries += [
            (f"  {kind or '(refused early)'}", own.get(kind, _NONE), expected_rates.get(kind))
            for kind in dict.fromkeys([*expected_rates, *own])
        ]
    every = [(totals, rate) for _, totals, rate in entries]
    columns = [(head, list(map(cell, every)), always) for head, cell, always in _COLUMNS]
    visible_columns = [(head, cells) for head, cells, always in columns if always or any(cells)]
    rows = [[name, *(cells[row] or "-" for _, cells in visible_columns)] for row, (name, _, _) in enumerate(entries)]
    yield from column_lines(["REQUESTS", *(head for head, _ in visible_columns)], rows, width)


def _executor_lines(options: Sequence[OptionState], width: int) -> Iterator[str]:
    several = {each.kind[:2] for each in options if sum(other.kind[:2] == each.kind[:2] for other in options) > 1}
    rows = []
    for each in options:
        model, option, origin = each.kind
        rows.append(
            [
                f"{model}/{option}{f'@{origin[:4]}' if each.kind[:2] in several else ''}",
                _target_text(each),
                f"{each.up}{f'+{each.leaving}' if each.leaving else ''}",
                _UNKNOWN if each.busy is None else f"{each.busy:4.0%} {_bar_text(each.busy)}",
                str(each.inflight),
                "-" if each.jobs is None else _rate_text(each.jobs),
                f"  {', '.join(each.components)}",
            ]
        )
    head = ["EXECUTORS", "wanted", "up", f"busy{' ' * (_BAR_CHARS + 1)}", "in flight", "jobs/s", "  runs"]
    yield from column_lines(head, rows, width, words=1)


def _target_text(option: OptionState) -> str:
    if option.staged is None or option.staged == option.wanted:
        return str(option.wanted)
    return f"{option.wanted}>{option.staged}"


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _rate_text(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else _integer_text(value)


def _integer_text(value: float) -> str:
    return f"{value:.0f}" if value < 100_000 else f"{value / 1000:.0f}k"


def _seconds_text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _speech_text(value: float) -> str:
    return f"{value:.1f}x" if value else ""


def _bar_text(share: float) -> str:
    full = round(share * _BAR_CHARS)
    return "|" * full + "." * (_BAR_CHARS - full)


#: Columns of the table of requests: the name, the text of a row's cell (empty for nothing), and whether to show the
#: column if all cells are empty. A row is totals and the planned rate.
_COLUMNS: Sequence[tuple[str, Callable[[tuple[Totals, float | None]], str], bool]] = (
    ("req/s", lambda row: _rate_text(row[0].came), True),
    ("planned", lambda row: "" if row[1] is None else _rate_text(row[1]), False),
    ("done/s", lambda row: _rate_text(row[0].done), True),
    ("failed", lambda row: str(row[0].failed), True),
    ("refused", lambda row: str(row[0].refused or ""), False),
    ("first", lambda row: _seconds_text(row[0].first), True),
    ("total", lambda row: _seconds_text(row[0].total), True),
    ("tok in/s", lambda row: _integer_text(row[0].quantities.get("prompt_tokens", 0.0)), True),
    ("out/s", lambda row: _integer_text(row[0].quantities.get("completion_tokens", 0.0)), True),
    ("speech", lambda row: _speech_text(row[0].quantities.get("speech_seconds", 0.0)), False),
)
