"""Tables and fields as lines for people."""

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import zip_longest

#: Characters of the label at the start of a line, as "answer  ".
LABEL_CHARS = 8
#: Minimum characters of names, and of the words in a last column, on a narrow screen.
_MIN_NAME_CHARS, _MIN_WORDS_CHARS = 12, 12
#: Minimum characters of a column whose words, and of one whose longer words, take several lines.
_MIN_WRAPPED_CHARS, _MIN_BROKEN_CHARS = 10, 14
#: Characters of the longest word or part that stays whole, if the table fits.
_MAX_UNBROKEN_CHARS = 24
#: Word of a cell, and part of one that stays on one line.
_WORD, _UNBROKEN = re.compile(r"[^ ]* *"), re.compile(r"[^-+>,/ ]*[-+>,/ ]*")


def screen_width() -> int:
    """Return the columns of the terminal that stdout is. Returns 0 for a file or pipe, unless ``COLUMNS`` is set."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size((80, 24)).columns
    return 0


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None, spare: Sequence[str] = ()
) -> Iterator[str]:
    """Yield a table with columns as wide as their widest cells.

    If that exceeds ``width`` (default: the screen), cells take several lines. If that does not suffice, the columns
    ``spare`` are left out, the last one first. Then names take several lines, and at last each row is a list of fields.
    """
    width = screen_width() if width is None else width
    widths: list[int] | None = _natural_widths([head, *rows])
    if width and _table_width(_natural_widths([head, *rows])) > width:
        widths = _narrow_widths(head, rows, width, broken=not spare)
        if widths is None and spare:
            yield from table_lines(*_without(head, rows, spare[-1]), width, spare[:-1])
            return
    if widths is None:
        yield from _record_lines(head, rows, width)
        return
    for row in [head, *rows]:
        yield from _row_lines(row, widths)


def field_lines(fields: dict[str, str], width: int | None = None) -> Iterator[str]:
    """Yield one line per field that is not empty, and more if it has more than ``width`` characters (the screen)."""
    width = screen_width() if width is None else width
    indent = max(map(len, fields)) + 2
    for name, value in fields.items():
        for line in value.splitlines():
            for part in _wrap_cell(line, max(width - indent, _MIN_WORDS_CHARS)) if width else [line]:
                yield f"{name.ljust(indent)}{part}".rstrip()
                name = ""


def text_lines(text: str, indent: int = 0, width: int | None = None) -> Iterator[str]:
    """Yield ``text`` in lines of at most ``width`` characters (the screen). Later lines are indented."""
    width = screen_width() if width is None else width
    for line in text.splitlines():
        if not width or text_columns(line) <= width:
            yield line
            continue
        start = len(line) - len(line.lstrip())
        first, *later = _wrap_cell(line[start:], width - start)
        yield line[:start] + first
        for part in _wrap_cell(line[start + len(first) :].lstrip(), width - indent) if later else ():
            yield " " * indent + part


def fit_text(text: str, indent: int = LABEL_CHARS) -> str:
    """Return ``text`` in lines that fit the screen, see ``text_lines``."""
    return "\n".join(text_lines(text, indent))


def text_columns(text: str) -> int:
    """Return the columns of ``text`` on a screen. Characters of East Asia take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


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


def _natural_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(text_columns(row[column]) for row in rows) for column in range(len(rows[0]))]


def _narrow_widths(head: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, broken: bool) -> list[int] | None:
    """Return widths of columns with which the table has ``width`` characters, or None. ``broken``: if necessary, names
    take several lines, those of the first column last."""
    natural = _natural_widths([head, *rows])
    words = _least_widths(rows, natural, _WORD, _MIN_WRAPPED_CHARS)
    narrow = _shrink([natural[0], *words[1:]], natural, width)
    if narrow is not None or not broken:
        return narrow
    parts = _least_widths(rows, natural, _UNBROKEN, _MIN_BROKEN_CHARS)
    return _shrink([natural[0], *parts[1:]], natural, width) or _shrink(parts, natural, width)


def _least_widths(
    rows: Sequence[Sequence[str]], widths: Sequence[int], parts: re.Pattern[str], least: int
) -> list[int]:
    """Return the least width of each column: that of its longest part, but at least ``least``."""
    longest = [
        max((len(part.rstrip()) for row in rows for part in parts.findall(row[at])), default=0)
        for at in range(len(widths))
    ]
    return [min(width, max(least, min(each, _MAX_UNBROKEN_CHARS))) for width, each in zip(widths, longest, strict=True)]


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _shrink(least: Sequence[int], widths: Sequence[int], width: int) -> list[int] | None:
    """Return ``widths`` with the widest columns narrowed until the table has ``width`` characters. Returns None if it
    is too wide with the ``least`` widths."""
    narrow = list(widths)
    while (over := _table_width(narrow) - width) > 0:
        free = [column for column, each in enumerate(narrow) if each > least[column]]
        if not free:
            return None
        widest = max(free, key=narrow.__getitem__)
        second = max([0, *(narrow[column] for column in free if narrow[column] < narrow[widest])])
        narrow[widest] = max(narrow[widest] - over, min(second, narrow[widest] - 1), least[widest])
    return narrow


def _row_lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [list(_wrap_cell(cell, chars)) for cell, chars in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield "  ".join(_pad(part, chars) for part, chars in zip(parts, widths, strict=True)).rstrip()


def _record_lines(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    for number, row in enumerate(rows):
        if number:
            yield ""
        yield from field_lines(dict(zip(head, row, strict=True)), width)


def _without(
    head: Sequence[str], rows: Sequence[Sequence[str]], name: str
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    column = list(head).index(name)
    without = [[*row[:column], *row[column + 1 :]] for row in [head, *rows]]
    return without[0], without[1:]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - text_columns(text))


def _wrap_cell(text: str, width: int) -> Iterator[str]:
    """Yield ``text`` in lines of at most ``width`` characters. Only longer words and names are broken."""
    line = ""
    for part in _parts(text, width):
        if line and text_columns(line + part.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += part
        while text_columns(line.rstrip()) > width:
            head = _head_chars(line, width)
            yield line[:head]
            line = line[head:]
    yield line.rstrip()


def _parts(text: str, width: int) -> Iterator[str]:
    """Yield the words of ``text``, and the parts of words that are wider than ``width``."""
    for word in filter(None, _WORD.findall(text)):
        yield from [word] if text_columns(word.rstrip()) <= width else filter(None, _UNBROKEN.findall(word))


def _head_chars(text: str, width: int) -> int:
    """Return how many characters of ``text`` fit into ``width`` columns, at least one."""
    chars = min(len(text), width)
    while chars > 1 and text_columns(text[:chars]) > width:
        chars -= 1
    return chars
