"""The table of docs/tools.md: results of JSON Schema's test suite by keyword.

The rest of the page is written by hand.
"""

import re
from pathlib import Path

from tests.json_schema_suite import run_suite, totals

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
_TABLE = re.compile(r"(?<=<!-- schemas -->\n).*?(?=<!-- end of schemas -->)", re.DOTALL)


def page() -> str:
    """The page with its current table."""
    results = run_suite()
    rows = ["| file of the suite | schemas | enforced | rejected | valid, but not written |", "|---|---|---|---|---|"]
    for name, each in results.items():
        counts = (each.schemas, each.schemas - len(each.rejected), len(each.rejected), len(each.narrow))
        rows.append(f"| {name} | {' | '.join(str(count) if count else '' for count in counts)} |")
    all_of = totals(results)
    rows.append(
        f"| **all** | {all_of['schemas']} | {all_of['schemas'] - all_of['rejected']} | {all_of['rejected']} | "
        f"{all_of['narrow']} |"
    )
    rows += ["", f"Invalid values that an enforced schema let through: {all_of['loose']}.", ""]
    return _TABLE.sub(lambda _: "\n".join(rows), PAGE.read_text())
