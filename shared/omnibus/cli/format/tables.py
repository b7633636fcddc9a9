"""Tables and fields as lines for people."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

#: Minimum characters of names, and of the words in a last column, on a narrow screen.
_MIN_NAME_CHARS, _MIN_WORDS_CHARS = 12, 12
#: Minimum characters of a column whose cells are wrapped.
_MIN_WRAPPED_CHARS = 14
#: Part of a cell that stays on one line.
_UNBROKEN = re.compile(r"[^-+>,/ ]*[-+>,/ ]*")


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table with columns as wide as their widest cells."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def wrapped_lines(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = 80) -> Iterator[str]:
    """Yield a table of at most ``width`` characters, if possible: cells of the widest columns take several lines."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    while (over := sum(widths) + 2 * (len(widths) - 1) - width) > 0 and max(widths) > _MIN_WRAPPED_CHARS:
        widest = widths.index(max(widths))
        second = max([*(each for each in widths if each < widths[widest]), _MIN_WRAPPED_CHARS])
        widths[widest] = max(widths[widest] - over, min(second, widths[widest] - 1), _MIN_WRAPPED_CHARS)
    for row in [head, *rows]:
        cells = [list(_wrap_cell(cell, chars)) for cell, chars in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            yield "  ".join(part.ljust(chars) for part, chars in zip(parts, widths, strict=True)).rstrip()


def field_lines(fields: dict[str, str]) -> Iterator[str]:
    """Yield one line per field that is not empty."""
    width = max(map(len, fields))
    for name, value in fields.items():
        if value:
            first, *rest = value.splitlines()
            yield f"{name.ljust(width)}  {first}".rstrip()
            yield from (f"{' ' * width}  {line}".rstrip() for line in rest)


def column_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, words: int = 0, least: int = _MIN_NAME_CHARS
) -> Iterator[str]:
    """Yield a table of at most ``width`` characters, 0 for any.

    Numbers are aligned to the right, the first and the last ``words`` columns to the left. A last column of words is
    cut first. Names are cut to at least ``least`` characters, and only if different names stay different. If that does
    not suffice, the table is wider than ``width``.
    """
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    if width and words and (over := sum(widths) + 2 * (len(widths) - 1) - width) > 0:
        widths[-1] = min(widths[-1], max(widths[-1] - over, _MIN_WORDS_CHARS))
    left = width - sum(each + 2 for each in widths[1:]) if width else widths[0]
    names = shorten_names([head[0], *(row[0] for row in rows)], max(left, least))
    widths[0] = max(map(len, names))
    for name, row in zip(names, [head, *rows], strict=True):
        cells = [name.ljust(widths[0])]
        for column, cell in enumerate(row[1:], 1):
            align = cell.ljust if column >= len(row) - words else cell.rjust
            cells.append(_cut(align(widths[column]), widths[column]))
        yield "  ".join(cells).rstrip()


def shorten_names(names: Sequence[str], width: int) -> list[str]:
    """Return ``names`` cut to ``width`` characters. They are longer if different names would become equal."""
    for chars in range(width, max(map(len, names))):
        short = [shorten_name(name, chars) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    return list(names)


def shorten_name(name: str, width: int) -> str:
    """Return ``name`` cut to ``width`` characters. A request type keeps all its parts, each shorter. ``MODEL/OPTION``
    keeps the option. Any other name keeps both ends."""
    if len(name) <= width:
        return name
    parts = name.strip().split("+")
    indent = " " * (len(name) - len(name.lstrip()))
    for letters in range(max(map(len, parts)), 0, -1) if len(parts) > 1 else ():
        cut = indent + "+".join(part[:letters] for part in parts)
        if len(cut) <= width:
            return cut
    model, slash, option = name.rpartition("/")
    if slash and len(option) + 3 < width:
        return f"{_cut_middle(model, width - len(option) - 1)}/{option}"
    return _cut_middle(name, width)


def _cut_middle(name: str, width: int) -> str:
    """Return both ends of ``name`` in ``width`` characters. Names of models differ at either end."""
    if len(name) <= width:
        return name
    behind = (width - 1) // 3
    return f"{name[: width - 1 - behind]}…{name[len(name) - behind :]}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def size_text(nbytes: float) -> str:
    """Return ``nbytes`` in the largest unit that gives at least 1."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 1000 else f"{value:.3g} {unit}"


def _wrap_cell(text: str, width: int) -> Iterator[str]:
    """Yield ``text`` in lines of at most ``width`` characters. A longer part of a name stays whole."""
    line = ""
    for part in filter(None, _UNBROKEN.findall(text)):
        if line and len(line) + len(part.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += part
    yield line.rstrip()
