"""Keys of embeddings: a SHA-256 of all that an embedding depends on.

That is the digest of the file, the salt of those that share the result, and the encoder.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from omnibus.checkpoints.gguf_header import find_projectors, is_gguf

#: Larger files of a checkpoint count by size and time; smaller ones, such as configurations, by their content.
_MAX_HASHED_FILE_BYTES = 1 << 20


class EncoderIdentity:
    """Makes the keys of one encoder.

    Results are stored under digests of bytes that were read here. A digest in a request is only looked up: a wrong one
    finds the result of that digest, and never changes it.
    """

    def __init__(self, component: str, family: str, checkpoint: Path, device: str, dtype: str) -> None:
        self._begun = sha256()
        for part in (family, component, device, dtype, *_checkpoint_revision(checkpoint)):
            _hash_part(self._begun, part.encode())

    def item_key(self, content: bytes, modality: str, salt: str, alone: bool = True) -> bytes:
        """Return 32 bytes, equal for media of equal ``content``, modality, salt and ``alone``.

        ``content`` is the SHA-256 of the media's bytes.
        """
        hasher = self._begun.copy()
        for part in (modality, salt, str(alone)):
            _hash_part(hasher, part.encode())
        hasher.update(content)
        return hasher.digest()


def _hash_part(hasher: Any, part: bytes) -> None:
    """Hash ``part`` after its length.

    Different lists of parts then never have the same bytes.
    """
    hasher.update(len(part).to_bytes(8, "big"))
    hasher.update(part)


def _checkpoint_revision(checkpoint: Path) -> Iterable[str]:
    """Yield texts that identify a version of a checkpoint, without reading weights."""
    root = checkpoint.parent if is_gguf(checkpoint) else checkpoint
    whole = [checkpoint, *find_projectors(root)] if is_gguf(checkpoint) else checkpoint.rglob("*")
    for path in sorted(file for file in whole if file.is_file()):
        about = path.stat()
        content = (
            sha256(path.read_bytes()).hexdigest() if about.st_size <= _MAX_HASHED_FILE_BYTES else str(about.st_mtime_ns)
        )
        yield f"{path.relative_to(root)}\n{about.st_size}\n{content}"
