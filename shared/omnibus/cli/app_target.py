"""App that a command names: a module, a file, or a text to upload."""

import json
import sys
from pathlib import Path
from typing import Any

from omnibus.errors import BadRequest


def source_body(target: str | None, upload: str | None, apps_dir: str) -> dict[str, Any]:
    """The source as the gateway's routes take it. ``apps_dir`` is where the gateway takes files from.

    Raises ``BadRequest`` for a file that cannot be read or lies elsewhere.
    """
    if upload is not None:
        path = _find_file(upload)
        return {"upload": _read_text(path), "name": path.stem}
    if target is None:
        raise BadRequest("name a module, a file, or `--upload FILE`")
    if not is_file(target):
        return {"module": target}
    module, root = locate_module(target)
    if not apps_dir:
        raise BadRequest(
            f"this gateway takes no files: install {target} and name its module, or use `--upload {target}`"
        )
    below = Path(apps_dir).resolve()
    if not root.is_relative_to(below):
        raise BadRequest(
            f"{target} is not below {below}, from where this Omnibus takes apps: move it there, start it with "
            f"`omnibus up --apps-dir {root}`, or use `--upload {target}`"
        )
    return {"module": module, "directory": str(root.relative_to(below))}


def is_file(target: str) -> bool:
    """Return whether ``target`` is a path, and no module's name."""
    return target.endswith(".py") or "/" in target


def locate_module(target: str) -> tuple[str, Path]:
    """Module name of a file, and the directory that it is imported from: the one around its packages."""
    path = _find_file(target)
    parts, root = ([] if path.stem == "__init__" else [path.stem]), path.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        parts, root = [root.name, *parts], root.parent
    if not all(part.isidentifier() for part in parts) or not parts:
        raise BadRequest(f"{target} cannot be imported as {'.'.join(parts)!r}: use letters, digits and '_' in its name")
    return ".".join(parts), root


def _find_file(target: str) -> Path:
    path = Path(target).resolve()
    if path.is_dir() and (path / "__init__.py").is_file():
        path = path / "__init__.py"
    if not path.is_file():
        raise BadRequest(f"{target}: no such file")
    if path.suffix != ".py":
        raise BadRequest(f"{target} is no Python file")
    return path


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: {error}") from error


def parse_request(text: str | None) -> Any:
    """The request that was given as JSON, ``-`` for what comes on stdin, or ``{}``. Raises ``BadRequest``."""
    given = sys.stdin.read() if text == "-" else text
    try:
        return {} if given is None else json.loads(given)
    except ValueError as error:
        raise BadRequest(f"the request is no JSON: {error}") from error
