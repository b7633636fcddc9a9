"""Hashes of packages that pip would install here.

    pip install --dry-run --report - ... | python -m tools.hashes

Prints requirements for ``pip install --require-hashes --no-deps -r``. They are valid for one kind of machine and one
index. You trust the index on the day when you make the file; later installs verify its hashes.
"""

import json
import sys
from typing import Any


def hashed_requirements(report: dict[str, Any]) -> str:
    """Return a line for each distribution in ``report``, pip's installation report.

    Local projects have none. Raises ``ValueError`` for a file without a SHA-256 in the index.
    """
    lines = []
    for each in report["install"]:
        if "dir_info" in each["download_info"]:
            continue
        requirement = f"{each['metadata']['name']}=={each['metadata']['version']}"
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise ValueError(f"{requirement} has no SHA-256: its index does not say one")
        lines.append(f"{requirement} --hash=sha256:{digest}\n")
    return "".join(sorted(lines, key=str.lower))


if __name__ == "__main__":
    sys.stdout.write(hashed_requirements(json.load(sys.stdin)))
