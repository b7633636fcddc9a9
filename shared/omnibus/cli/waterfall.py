"""An invocation as text: its graph, its route, and who worked when."""

from collections.abc import Iterator, Sequence
from typing import Any

WIDTH = 44  # columns of the waterfall


def graph(invocation: dict[str, Any]) -> Iterator[str]:
    """One line per node: task, executor, and the nodes it waits for."""
    yield f"graph   type {invocation['type']}, path {invocation['path']}, plan epoch {invocation['epoch']}"
    for index, (node, executor) in enumerate(zip(invocation["nodes"], invocation["route"], strict=True)):
        feeds = sorted({f"{source}.{output}" for source, output in _refs(node["inputs"])})
        source = f"← {', '.join(feeds)}" if feeds else ""
        yield f"  [{index}] {node['component']:<8} on {executor:<32} {source}".rstrip()


def _refs(value: Any) -> Iterator[tuple[int, str]]:
    if isinstance(value, dict):
        if set(value) == {"$ref"}:
            yield tuple(value["$ref"])
        else:
            for entry in value.values():
                yield from _refs(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _refs(entry)


def waterfall(ended: dict[str, Any], components: Sequence[str]) -> Iterator[str]:
    """One bar per node: ``·`` waiting for inputs, ``─`` working before the first output, ``█`` giving output."""
    start = ended["created"]
    total = max(ended["finished"] - start, 1e-6)
    yield f"times   {total * 1000:.0f} ms in all, first output to the client after {_ms(ended.get('first', 0), start)}"
    for hop in ended.get("hops", []):
        bar = _bar(hop, start, total)
        ready, first, end = (_ms(hop[name], start) for name in ("ready", "first", "end"))
        moments = f"inputs {ready:>8}  first {first:>8}  end {end:>8}"
        yield f"  [{hop['node']}] {components[hop['node']]:<8} |{bar}| {moments}"


def _bar(hop: dict[str, Any], start: float, total: float) -> str:
    def column(moment: float) -> int:
        return min(WIDTH, max(0, round((moment - start) / total * WIDTH)))

    taken, ready, first, end = (column(hop[name]) for name in ("taken", "ready", "first", "end"))
    ready, first = min(ready, end), min(max(first, ready), end)
    bar = " " * taken + "·" * (ready - taken) + "─" * (first - ready) + "█" * max(end - first, 1 if end > taken else 0)
    return bar[:WIDTH].ljust(WIDTH)


def _ms(moment: float, start: float) -> str:
    return f"{(moment - start) * 1000:.0f} ms" if moment else "-"
