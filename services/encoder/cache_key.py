"""Key of an embedding: one SHA-256 of all it depends on, the file's digest, who may share it, and what encodes it."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

#: Files of a checkpoint up to this size count by their content: configurations, of the preprocessor too.
_MAX_HASHED_FILE_BYTES = 1 << 20


class EncoderIdentity:
    """Makes the keys of one encoder.

    Results are kept under the digests of bytes that were read here. What a request says of its media's content is only
    ever looked for: a wrong digest finds what belongs to that digest, and never changes it.
    """

    def __init__(self, component: str, family: str, checkpoint: Path, device: str, dtype: str) -> None:
        self._begun = sha256()
        for part in (family, component, device, dtype, *_checkpoint_revision(checkpoint)):
            _hash_part(self._begun, part.encode())

    def item_key(self, content: bytes, modality: str, salt: str, alone: bool = True) -> bytes:
        """Return 32 bytes: equal for media of equal ``content``, modality and salt, looked at in one way, alone.

        ``content`` is the SHA-256 of the media's bytes.
        """
        found = self._begun.copy()
        for part in (modality, salt, str(alone)):
            _hash_part(found, part.encode())
        found.update(content)
        return found.digest()


def _hash_part(hashed: Any, part: bytes) -> None:
    """With its length, so that no two lists of parts are the same bytes."""
    hashed.update(len(part).to_bytes(8, "big"))
    hashed.update(part)


def _checkpoint_revision(checkpoint: Path) -> Iterable[str]:
    """Tells versions of a checkpoint apart without reading its weights."""
    for path in sorted(file for file in checkpoint.rglob("*") if file.is_file()):
        about = path.stat()
        content = (
            sha256(path.read_bytes()).hexdigest() if about.st_size <= _MAX_HASHED_FILE_BYTES else str(about.st_mtime_ns)
        )
        yield f"{path.relative_to(checkpoint)}\n{about.st_size}\n{content}"
