"""Rows for people."""

from collections.abc import Iterator, Sequence

#: Characters of the first column that are kept even on a narrow screen.
_MIN_NAME_CHARS = 12


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def field_lines(named: dict[str, str]) -> Iterator[str]:
    """One line per field that is not empty."""
    width = max(map(len, named))
    for name, value in named.items():
        if value:
            first, *rest = value.splitlines()
            yield f"{name.ljust(width)}  {first}".rstrip()
            yield from (f"{' ' * width}  {line}".rstrip() for line in rest)


def column_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, words: int = 0, least: int = _MIN_NAME_CHARS
) -> Iterator[str]:
    """Lines of a table of at most ``width``, if names can be cut to that, but not below ``least`` characters: numbers
    to the right, the first and the last ``words`` columns to the left.
    """
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    left = width - sum(each + 2 for each in widths[1:])
    widths[0] = min(widths[0], max(left, least))
    for row in [head, *rows]:
        cells = [shorten_name(row[0], widths[0]).ljust(widths[0])]
        for column, cell in enumerate(row[1:], 1):
            aligned = cell.ljust if column >= len(row) - words else cell.rjust
            cells.append(aligned(widths[column]))
        yield "  ".join(cells).rstrip()


def shorten_name(name: str, width: int) -> str:
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


def size_text(nbytes: float) -> str:
    """Bytes in the largest unit of which there is at least one."""
    found, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if found < 1024 or unit == "TiB":
            break
        found /= 1024
    return f"{found:.0f} {unit}" if unit == "B" or found >= 1000 else f"{found:.3g} {unit}"
