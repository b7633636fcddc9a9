"""LoRA adapters that are loaded at run time, from one allowed directory.

A source has the path of an adapter below that directory, so machines may have it at different places. It also has the
digest of the adapter's files: after a change of the files, it is another adapter.
"""

import hashlib
from pathlib import Path

import msgspec

from omnibus.checkpoints.adapters import CONFIG_FILE, WEIGHTS_FILE, LoraAdapter, read_adapter
from omnibus.errors import BadRequest, Conflict, Forbidden

_FILES = (CONFIG_FILE, WEIGHTS_FILE)


class AdapterSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adapter by path and digest. ``path`` is below the allowed directory, ``sha256`` is that of its files in hex."""

    path: str
    sha256: str


def describe_adapter(path: str, root: str, setting: str) -> tuple[AdapterSource, LoraAdapter]:
    """Return the source of the adapter at ``path``, and its header. Reads all its files.

    ``path`` is absolute or relative to ``root``. Raises ``Forbidden`` that names ``setting`` if no directory or another
    one is allowed. Raises ``BadRequest`` if the files are not an adapter, or not a supported one.
    """
    directory = _resolve_directory(path, root, setting)
    adapter = read_adapter(directory)
    return AdapterSource(str(directory.relative_to(Path(root).resolve())), _compute_digest(directory)), adapter


def open_adapter(name: str, source: AdapterSource, root: str, setting: str) -> LoraAdapter:
    """Return the header of the adapter ``name`` at ``source``. Reads all its files.

    Raises as ``describe_adapter``, and ``Conflict`` if its files changed after it was loaded.
    """
    current, adapter = describe_adapter(source.path, root, setting)
    if current.sha256 != source.sha256:
        raise Conflict(f"the files of the adapter {name!r} have changed since it was loaded: load it again")
    return adapter


def _resolve_directory(path: str, root: str, setting: str) -> Path:
    """Return the directory of an adapter, with links resolved. It and its files must be below ``root``."""
    if not root:
        raise Forbidden(f"adapters cannot be loaded at run time: set {setting} to their directory")
    base = Path(root).resolve()
    try:
        directory = (base / path).resolve()
        inside = all(each.resolve().is_relative_to(base) for each in (directory, *(directory / one for one in _FILES)))
        there = directory.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, or links in a circle
        inside, there = True, False
    if not inside:
        raise Forbidden(f"{path[:80]!r} is not below {setting}", param="lora_path")
    if not there:
        raise BadRequest(f"unknown directory {path[:80]!r} below {setting}", param="lora_path")
    return directory


def _compute_digest(directory: Path) -> str:
    whole = hashlib.sha256()
    for name in _FILES:
        with (directory / name).open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
