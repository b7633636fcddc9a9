"""App that a command names: a module, a file, or source to upload."""

import json
import sys
from pathlib import Path
from typing import Any

from omnibus.errors import BadRequest


def source_body(target: str | None, upload: str | None, apps_dir: str) -> dict[str, Any]:
    """Return the source as the gateway's routes expect it.

    ``apps_dir`` is the directory from which the gateway loads files. Raises ``BadRequest`` for a file that cannot be
    read or is outside that directory.
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
            f"this gateway loads no files: install {target} and name its module, or use `--upload {target}`"
        )
    below = Path(apps_dir).resolve()
    if not root.is_relative_to(below):
        raise BadRequest(
            f"{target} is not below {below}, the directory of apps: move it there, start Omnibus with "
            f"`omnibus up --apps-dir {root}`, or use `--upload {target}`"
        )
    return {"module": module, "directory": str(root.relative_to(below))}


def is_file(target: str) -> bool:
    """Return whether ``target`` is a path rather than a module name."""
    return target.endswith(".py") or "/" in target


def locate_module(target: str) -> tuple[str, Path]:
    """Return the module name of a file and its import root.

    The root is the directory around the file's packages.
    """
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
        raise BadRequest(f"{target}: file not found")
    if path.suffix != ".py":
        raise BadRequest(f"{target} must be a Python file, its name must end in .py")
    return path


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: {error}") from error


def parse_request(text: str | None) -> Any:
    """Parse the request from JSON ``text``. ``-`` reads stdin, and None means ``{}``. Raises ``BadRequest``."""
    json_text = sys.stdin.read() if text == "-" else text
    try:
        return {} if json_text is None else json.loads(json_text)
    except ValueError as error:
        raise BadRequest(f"the request must be JSON: {error}") from error
