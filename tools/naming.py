"""``python -m tools.naming``: figures of names in ``services``, ``shared`` and ``tests``.

It lists names of ``services`` and ``shared`` that break a rule. Those of tests have a ratchet in ``tools.prose``.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.prose_rules import CLAUSE

ROOT = Path(__file__).parents[1]
#: Words that say nothing to a reader who does not know this project, as parts of names.
PRIVATE_WORDS = {
    "told", "tell", "tells", "heard", "asked", "said", "says", "came", "come", "comes", "stay", "stays", "ways",
    "tape", "tapes", "reel", "reels", "film", "films", "wish", "wanted", "born", "look", "looks", "looking",
    "nobody", "somebody", "company", "theirs", "ours", "sprout", "nursery", "cradle", "filmer", "painter",
}  # fmt: skip


class Names(NamedTuple):
    """Definitions of a source tree.

    ``functions`` without dunders, ``classes`` and modules by file, and docstrings.
    """

    functions: list[tuple[str, str]]
    classes: list[tuple[str, str]]
    modules: list[tuple[str, str]]
    docstrings: list[tuple[str, str]]

    @property
    def one_word_share(self) -> float:
        """Share of functions whose name is a single word."""
        return sum("_" not in name.strip("_") for _, name in self.functions) / len(self.functions)

    @property
    def shared_classes(self) -> list[tuple[str, str]]:
        """Classes that have their name in common with another one."""
        counts = Counter(name for _, name in self.classes)
        return [each for each in self.classes if counts[each[1]] > 1]

    @property
    def private_names(self) -> list[tuple[str, str]]:
        """Names of modules, classes and functions with a private word."""
        return [each for each in self.modules + self.classes + self.functions if PRIVATE_WORDS & set(_words(each[1]))]

    @property
    def clauses(self) -> list[tuple[str, str]]:
        """Docstrings that open with a relative clause."""
        return [each for each in self.docstrings if CLAUSE.match(each[1])]


def read_names(root: Path = ROOT, trees: Iterable[str] = ("services", "shared")) -> Names:
    """Collect the definitions of all sources below ``trees`` of ``root``, without tests."""
    names = Names([], [], [], [])
    for path in sorted(path for tree in trees for path in (root / tree).rglob("*.py")):
        file = str(path.relative_to(root))
        names.modules.append((file, path.stem))
        for node in ast.walk(ast.parse(path.read_text(), file)):
            if isinstance(node, ast.ClassDef):
                names.classes.append((file, node.name))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(("__", "test_")):
                names.functions.append((file, node.name))
            names.docstrings.extend((file, line) for line in _first_lines(node))
    return names


def _first_lines(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (ast.get_docstring(node) or "").splitlines()[:1]


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def _print_figures(title: str, names: Names) -> None:
    count, classes = len(names.functions), len(names.classes)
    print(f"{title}:")
    print(f"  functions with a one-word name    {names.one_word_share:6.1%} of {count}")
    print(f"  classes that share their name     {len(names.shared_classes) / classes:6.1%} of {classes}")
    print(f"  docstrings that open with a clause {len(names.clauses):4} of {len(names.docstrings)}")
    print(f"  names with a private word         {len(names.private_names):4}")


def main() -> int:
    """Print the figures, then violations; the exit code is 1 if any exist."""
    names, tests = read_names(), read_names(trees=("tests",))
    _print_figures("services and shared", names)
    _print_figures("tests", tests)
    violations = names.private_names + names.clauses
    for file, text in violations:
        print(f"{file}: {text}")
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
