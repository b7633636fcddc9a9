"""``omnibus compare``: shows two recorded requests side by side, segment by segment and edge by edge."""

import argparse
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from omnibus.cli.format.tables import table_lines
from omnibus.cli.invocations import connect_bus
from omnibus.cli.output import print_json, report_not_compared
from omnibus.recording import records
from omnibus.recording.records import Record
from omnibus.recording.steps import MAX_SHOWN_CHARS, PLAYER_PREFIX, Step, StepValue, build_steps

#: Characters of a digest, of a value in a table, and of equal text before a difference.
_DIGEST_CHARS, _CELL_CHARS, _EQUAL_CHARS = 12, 60, 16
_PLAYED = "played as before"
_MARKS = {True: "", False: "≠", None: "?"}


class ComparedValue(NamedTuple):
    """Row with both sides as text, and whether they are equal. ``same`` is None if that is unknown or meaningless."""

    node: str
    value: str
    first: str
    second: str
    same: bool | None
    is_result: bool = False  # the request returns this output


async def compare_invocations(options: argparse.Namespace) -> int:
    """Print two requests side by side. The exit code is 1 if a result differs, and 3 if none could be compared."""
    bus = await connect_bus(options)
    try:
        first, second = [await records.find_segments(bus, id) for id in options.ids]
    finally:
        await bus.drain()
    rows = [row for parts in zip_longest(first, second) for row in compare_steps(*parts)]
    if options.json:
        print_json([{key: value for key, value in row._asdict().items() if key != "is_result"} for row in rows])
    else:
        marked_rows = [[*row[:4], _MARKS[row.same]] for row in rows]
        print("\n".join(table_lines(["NODE", "VALUE", *options.ids, ""], marked_rows)))
    outputs = [row for row in rows if row.value.startswith("→") and row.second != _PLAYED]
    if any(row.same is False for row in outputs):
        return 1
    unknown = [f"{row.node} {row.value}" for row in outputs if row.is_result and row.same is None]
    if unknown or not any(row.same for row in outputs):
        why = f"{', '.join(unknown)} was not recorded, or was empty" if unknown else "no output is in both"
        return report_not_compared(why, options.json)
    return 0


def compare_steps(first: Record | None, second: Record | None) -> Iterator[ComparedValue]:
    """Yield the rows of a pair of graphs: inputs, results, seconds and price. One side may lack the graph."""
    steps = [_name_steps(record) for record in (first, second)]
    results = {key for record in (first, second) if record is not None for key in record.invocation.outputs}
    prefix = next((f"{record.invocation.step}:" for record in (first, second) if record and record.invocation.step), "")
    for key in dict.fromkeys([*steps[0], *steps[1]]):
        step = {**steps[1], **steps[0]}[key]
        one, other = (each.get(key) for each in steps)
        name = f"{prefix}[{step.node}] {step.component}"
        for arrow, side in (("←", "inputs"), ("→", "outputs")):
            for before, after in _pair_values(one, other, side):
                about = before or after
                if about is None or (about.source and arrow == "←"):
                    continue
                is_played = arrow == "→" and other is not None and other.executor.startswith(PLAYER_PREFIX)
                same = True if is_played else _is_same(before, after)
                left, right = _cells(before, after)
                is_result = arrow == "→" and (step.node, about.name) in results
                right = _PLAYED if is_played else right
                yield ComparedValue(name, f"{arrow} {about.name}", left, right, same, is_result)
        left, right = (_number_text(each.seconds if each is not None else None) for each in (one, other))
        yield ComparedValue(name, "seconds", left, right, True)
    usages = [record.ended.usage if record and record.ended is not None else None for record in (first, second)]
    left, right = (_number_text(usage.gpu_seconds if usage is not None else None) for usage in usages)
    yield ComparedValue(f"{prefix}all", "GPU-seconds", left, right, True)


def _name_steps(record: Record | None) -> dict[tuple[str, int], Step]:
    """Return the steps by component and its count so far. Graphs of other shapes have them at other nodes."""
    counts: Counter[str] = Counter()
    steps = {}
    for step in build_steps(*record) if record is not None else ():
        steps[step.component, counts[step.component]] = step
        counts[step.component] += 1
    return steps


def _pair_values(
    one: Step | None, other: Step | None, side: str
) -> Iterator[tuple[StepValue | None, StepValue | None]]:
    """Yield the values of both steps by name, None if missing."""
    values = [{value.name: value for value in getattr(step, side)} if step is not None else {} for step in (one, other)]
    for name in dict.fromkeys([*values[0], *values[1]]):
        yield values[0].get(name), values[1].get(name)


def _is_same(one: StepValue | None, other: StepValue | None) -> bool | None:
    """Return whether both are equal, by digests or by values. Returns None if neither is known for both."""
    if one is None or other is None:
        return False
    for key in ("digest", "sha256"):
        left, right = getattr(one, key), getattr(other, key)
        if left and right:
            return bool(left == right)
    texts = [value.text for value in (one, other) if value.text]
    if len(texts) == 2 and (texts[0] != texts[1] or len(texts[0]) < MAX_SHOWN_CHARS):
        return texts[0] == texts[1]
    return None


def _cells(first: StepValue | None, second: StepValue | None) -> tuple[str, str]:
    """Return both values as text. Of long ones, it is the part around the first difference."""
    texts = [_value_text(first), _value_text(second)]
    equal = next((index for index, (one, other) in enumerate(zip(*texts, strict=False)) if one != other), 0)
    start = max(0, equal - _EQUAL_CHARS) if max(map(len, texts)) > _CELL_CHARS else 0
    left, right = (_cut(f"…{text[start:]}" if start else text) for text in texts)
    return left, right


def _value_text(value: StepValue | None) -> str:
    if value is None:
        return "-"
    digest = (value.digest or value.sha256)[:_DIGEST_CHARS]
    return value.text.replace("\n", " ") or (f"sha256 {digest}" if digest else "not known")


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_CHARS else f"{text[: _CELL_CHARS - 1]}…"


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
