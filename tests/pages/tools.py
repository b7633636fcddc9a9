"""The table of docs/tools.md: results of JSON Schema's test suite by keyword.

The rest of the page is written by hand.
"""

import re
from pathlib import Path

from tests.json_schema_suite import count_totals, run_suite

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
_TABLE = re.compile(r"(?<=<!-- schemas -->\n).*?(?=<!-- end of schemas -->)", re.DOTALL)


def make_page() -> str:
    """The page with its current table."""
    results = run_suite()
    whole: list[str] = []
    none: list[str] = []
    rows: list[str] = []
    for name, each in results.items():
        rejections, narrow = len(each.rejected), len(each.narrow)
        if not rejections and not narrow:
            whole.append(f"`{name}`")
        elif rejections == each.schemas:
            none.append(f"`{name}`")
        else:
            counts = (each.schemas - rejections, rejections, narrow)
            rows.append(f"| {name} | {' | '.join(str(count) if count else '' for count in counts)} |")
    all_of = count_totals(results)
    rows.append(
        f"| **all files** | {all_of['schemas'] - all_of['rejected']} | {all_of['rejected']} | {all_of['narrow']} |"
    )
    text = [
        f"Every schema is enforced: {', '.join(whole)}.",
        "",
        f"Every schema is rejected: {', '.join(none)}.",
        "",
        "| file of the suite | enforced | rejected | valid, but not written |",
        "|---|---|---|---|",
        *rows,
        "",
        f"Invalid values that an enforced schema let through: {all_of['loose']}.",
        "",
    ]
    return _TABLE.sub(lambda _: "\n".join(text), PAGE.read_text())
