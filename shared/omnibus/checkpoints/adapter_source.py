"""LoRA adapters that are loaded while a system serves: from one directory that is allowed, known by their content.

A source names an adapter's directory from there, so that machines may have it at places of their own, and the digest
of its files: what was changed since is another adapter.
"""

import hashlib
from pathlib import Path

import msgspec

from omnibus.checkpoints.adapters import CONFIG_FILE, WEIGHTS_FILE, LoraAdapter, read_adapter
from omnibus.errors import BadRequest, Conflict, Forbidden

_FILES = (CONFIG_FILE, WEIGHTS_FILE)


class AdapterSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter by its ``path`` below the directory that is allowed, and the ``sha256`` of its files in hex."""

    path: str
    sha256: str


def describe_adapter(path: str, root: str, setting: str) -> tuple[AdapterSource, LoraAdapter]:
    """The source of the adapter at ``path``, given from ``root`` or absolutely, and its header. Reads all its files.

    Raises ``Forbidden`` that names ``setting`` where no directory is allowed or another one is, and ``BadRequest`` for
    what is no adapter, or one that is not supported.
    """
    directory = _resolve_directory(path, root, setting)
    adapter = read_adapter(directory)
    return AdapterSource(str(directory.relative_to(Path(root).resolve())), _compute_digest(directory)), adapter


def open_adapter(name: str, source: AdapterSource, root: str, setting: str) -> LoraAdapter:
    """The header of the adapter ``name`` at ``source``. Reads all its files.

    Raises as ``describe_adapter``, and ``Conflict`` when its files are not those that were loaded under this name.
    """
    found, adapter = describe_adapter(source.path, root, setting)
    if found.sha256 != source.sha256:
        raise Conflict(f"the files of the adapter {name!r} have changed since it was loaded: load it again")
    return adapter


def _resolve_directory(path: str, root: str, setting: str) -> Path:
    """The directory of an adapter with links followed. Neither it nor its files lie outside of ``root``."""
    if not root:
        raise Forbidden(f"adapters cannot be loaded while this system serves: set {setting} to the directory of them")
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
        raise BadRequest(f"there is no directory {path[:80]!r} below {setting}", param="lora_path")
    return directory


def _compute_digest(directory: Path) -> str:
    whole = hashlib.sha256()
    for name in _FILES:
        with (directory / name).open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
