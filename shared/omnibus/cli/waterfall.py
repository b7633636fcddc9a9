"""An invocation as text: its graph, its route, and the times of its stages."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET, UnsetType

from omnibus.cli.format.tables import screen_width, size_text
from omnibus.graph import Invocation
from omnibus.plan import CPU
from omnibus.pricing import RequestUsage
from omnibus.recording.waterfall import GATEWAY, PHASES, Edge, Pull, Row, Waterfall

#: Columns of the bars, on a narrow screen at least, and of a time.
BAR_COLUMNS, _MIN_BAR_COLUMNS, _TIME_COLUMNS = 44, 12, 11

#: Character of each phase of a node, see ``omnibus.recording.waterfall.PHASES``.
MARKS = dict(zip(PHASES, "·╌░▒█", strict=True))

#: Characters of the narrowest column of components.
_COMPONENT_CHARS = 8

#: Number of the slowest edges to list.
MAX_LISTED_EDGES = 8


def graph_lines(invocation: Invocation, route: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield one line per node: component, executor, and the outputs it waits for. ``route`` is the last attempt's."""
    yield f"graph   type {invocation.type}, path {invocation.path}, plan epoch {invocation.epoch}"
    chars = _component_chars([node.component for node in invocation.nodes])
    for index, (node, executor) in enumerate(zip(invocation.nodes, route or invocation.route, strict=True)):
        feeds = ", ".join(f"{source}.{output}" for source, output in sorted(set(node.uses)))
        yield f"  [{index}] {node.component:<{chars}} on {executor:<32} {f'← {feeds}' if feeds else ''}".rstrip()


def waterfall_lines(waterfall: Waterfall, width: int | None = None) -> Iterator[str]:
    """Yield a bar per node, the slowest edges, and the moves. The table has at most ``width`` columns (the screen)."""
    total = waterfall.summary.seconds
    if total is None:
        return
    width = screen_width() if width is None else width
    first = waterfall.summary.first
    after = f"{_milliseconds_text(first)} ms" if first else "-"
    yield f"times   {_milliseconds_text(total)} ms in all, first output to the client after {after}"
    yield from _node_lines(waterfall.nodes, total, width)
    edges = sorted((edge for edge in waterfall.edges if not edge.local and edge.seconds), key=_slowest_first)[
        :MAX_LISTED_EDGES
    ]
    for edge in edges:
        milliseconds = _milliseconds_text(edge.seconds)
        yield f"edge    [{edge.source}].{edge.output} → [{edge.target}]  {milliseconds} ms from its first output"
    yield from map(_pull_line, waterfall.pulls)
    for move in waterfall.moves:
        why = f"{move.reason} {move.executor}".rstrip()
        yield f"moved   attempt {move.attempt} ended after {_milliseconds_text(move.at)} ms: {why}"
        if move.again:
            names = ", ".join(f"[{node}] {waterfall.nodes[node].component}" for node in move.again)
            yield f"again   {names}; all others continued, or were done"
        for output, count in move.resumed.items():
            yield f"resumed {output} after {count} items, which were not computed again"


def _node_lines(rows: Sequence[Row], total: float, width: int) -> Iterator[str]:
    """Yield the bars and times of nodes. On a narrow screen, the times of phases are below the bars."""
    chars = _component_chars([row.component for row in rows])
    space = width - chars - 9 - _TIME_COLUMNS  # 9: the number of the node, and the ends of the bar
    columns = BAR_COLUMNS if not width else max(_MIN_BAR_COLUMNS, min(space, BAR_COLUMNS))
    is_wide = not width or space >= BAR_COLUMNS + _TIME_COLUMNS * len(PHASES)
    names = [f"{MARKS[name]} {name}" for name in PHASES]
    scale = f"{'0 ms':<{columns - 12}}{_milliseconds_text(total) + ' ms':>12}"
    yield f"  {'':<{chars + 4}} |{scale}|{_time_cells([*(names if is_wide else ()), 'end'])}"
    for row in rows:
        bar, times = _phase_bar(row, max(total, 1e-6), columns), _phase_times(row)
        cells = _time_cells(times if is_wide else times[-1:]) if times else f" {row.state}"
        yield f"  [{row.node}] {row.component:<{chars}} |{bar}|{cells}"
    if not is_wide:
        yield f"  {'ms':<{chars + 4}}  {_time_cells(names)}"
        for row in rows:
            yield f"  [{row.node}] {row.component:<{chars}}  {_time_cells(_phase_times(row)[:-1])}".rstrip()


def _component_chars(components: Iterable[str]) -> int:
    return max([_COMPONENT_CHARS, *map(len, components)])


def _time_cells(times: Iterable[str]) -> str:
    return "".join(f" {each:>{_TIME_COLUMNS - 1}}" for each in times)


def usage_lines(usage: RequestUsage) -> Iterator[str]:
    """Yield GPU-seconds, money and joules, in total and by stage."""
    cost = _money_text(usage.money, usage.currency) + _energy_text(usage.energy_joules)
    unit = "CPU-seconds" if usage.stages and all(stage.gpu == CPU for stage in usage.stages) else "GPU-seconds"
    whole = f"{_seconds_text(usage.gpu_seconds)} {unit}{cost}"
    yield f"usage   {whole}{'' if usage.complete else ', and stages that did not report'}"
    if usage.nbytes:
        yield f"  {size_text(usage.nbytes)} between nodes"
    chars = _component_chars(stage.component for stage in usage.stages)
    for stage in usage.stages:
        place = "CPU" if stage.gpu == CPU else f"{stage.gpus} {stage.gpu or 'GPU'}"
        took = f"{_seconds_text(stage.seconds)} s on {place}"
        cost = _money_text(stage.money, usage.currency) + _energy_text(stage.energy_joules)
        yield f"  [{stage.node}] {stage.component:<{chars}} {took:<28}{cost}".rstrip()


def _energy_text(joules: float | UnsetType) -> str:
    return "" if joules is UNSET else f", {joules:.6g} J"


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _money_text(money: float | UnsetType, currency: str | UnsetType) -> str:
    return "" if money is UNSET or currency is UNSET else f", {money:.9f}".rstrip("0").rstrip(".") + f" {currency}"


def _pull_line(pull: Pull) -> str:
    source = f"[{pull.source}].{pull.output}" if pull.source != GATEWAY else "input"
    target = f"[{pull.target}]" if pull.target != GATEWAY else "gateway"
    transfer = f"{size_text(pull.nbytes)} from {pull.from_node} to {pull.to_node}"
    return f"pulled  {source} → {target}  {transfer} in {_milliseconds_text(pull.seconds)} ms"


def _slowest_first(edge: Edge) -> float:
    return -(edge.seconds or 0.0)


def _phase_bar(row: Row, total: float, columns: int) -> str:
    """Return the phases of a node as a bar to scale. A phase has at least one column."""
    bar = [" "] * columns
    free = 0  # the first column that a phase may begin in without hiding the one before it
    for behind, phase in zip(reversed(range(len(row.phases))), row.phases, strict=True):
        start = min(columns - 1 - behind, max(free, round(phase.start / total * columns)))
        end = min(columns, max(start + 1, round(phase.end / total * columns)))
        bar[start:end] = MARKS[phase.name] * (end - start)
        free = start + 1
    return "".join(bar)


def _phase_times(row: Row) -> list[str]:
    """Return the milliseconds of each phase and of the end. The list is empty unless the node is done."""
    if row.state != "done":
        return []
    took = {phase.name: phase.end - phase.start for phase in row.phases}
    return [*(_milliseconds_text(took.get(name)) for name in PHASES), _milliseconds_text(row.end)]


def _milliseconds_text(seconds: float | None) -> str:
    """Return milliseconds as text, short ones with one more digit."""
    if seconds is None:
        return "-"
    value = seconds * 1000
    return f"{value:.1f}" if 0 < value < 10 else f"{value:.0f}"
