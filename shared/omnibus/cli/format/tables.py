"""Rows for people."""

from collections.abc import Iterator, Sequence


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
