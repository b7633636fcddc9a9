"""Digest of the code that an experiment measures: its module and its imports of measured packages.

These are the planner and simulated engines. Comments, docstrings and layout do not count: a result is stale only if the
code behaves differently.
"""

import ast
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path as File

#: Packages and modules whose code is measured. Their other imports are data and plumbing.
MEASURED = (
    "tests.lab",
    "omnibus_planner.simulate",
    "omnibus_planner.solve",
    "omnibus_planner.optimize",
    "omnibus.executor.sim",
    "omnibus.executor.scheduler",
    "omnibus.executor.step_budget",
    "omnibus.plan",
    "omnibus.families.image_tokens",
)
#: Modules of the lab that only present measurements.
_SHOWING = tuple(f"tests.lab.{name}" for name in ("digest", "page", "results", "svg", "registry", "__main__"))


def code_digest(module: str) -> str:
    """Return the digest of ``module`` and its imports of ``MEASURED``.

    It has 16 hex digits.
    """
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found and (source := _module_file(name)) is not None:
            found[name] = _body_digest(source)
            waiting += _imported_modules(source)
    return blake2b("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode(), digest_size=8).hexdigest()


@cache
def _module_file(name: str) -> File | None:
    """Return the file of a measured module; None for other names."""
    if not name.startswith(MEASURED) or name in _SHOWING:
        return None
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    return File(spec.origin) if spec is not None and spec.origin else None


@cache
def _parse(file: File) -> ast.Module:
    return ast.parse(file.read_bytes())


def _imported_modules(file: File) -> Iterator[str]:
    for node in ast.walk(_parse(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _body_digest(file: File) -> str:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                node.body = body[1:] or [ast.Pass()]
    return blake2b(ast.dump(tree).encode(), digest_size=8).hexdigest()
