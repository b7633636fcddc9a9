"""Parts of media that were encoded before: of a sound that goes on only its end is new."""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch

from omnibus_models.contract import MediaEncoder, Prepared
from services.encoder.cache_key import EncoderIdentity
from services.encoder.embedding_cache import EmbeddingCache, EncoderResult

#: The modality under which parts have their keys: no file is of it.
_PART = "part of "


class SaltedItem(NamedTuple):
    """A prepared item, and the ``salt`` of those who share what is computed of it."""

    item: Prepared
    salt: str


class PartEncoder:
    """Encodes items of ``model`` by ``encode``, but for those of their parts that ``results`` has.

    A part is known by the digest of its features, which is what its rows are computed of. How features of a beginning
    depend on what follows is therefore no matter: one that differs is another part.
    """

    def __init__(
        self,
        model: MediaEncoder,
        identity: EncoderIdentity,
        results: EmbeddingCache[SaltedItem],
        encode: Callable[[Prepared], Awaitable[EncoderResult]],
    ) -> None:
        self._model = model
        self._identity = identity
        self._results = results
        self._encode = encode
        self.reused = 0  # parts

    def find_keys(self, wanted: SaltedItem, parts: Sequence[Prepared]) -> list[bytes]:
        """The keys of all ``parts`` but the last, which is the one that may not be complete."""
        modality = _PART + wanted.item.modality
        return [self._identity.item_key(_digest(part), modality, wanted.salt) for part in parts[:-1]]

    async def encode_missing(self, item: Prepared, parts: Sequence[Prepared], keys: Sequence[bytes]) -> EncoderResult:
        """The result of ``item``, which is cut into ``parts``."""
        found = [self._results.peek(key) for key in keys]
        missing = [part for part, known in zip(parts, [*found, None], strict=True) if known is None]
        made = await self._encode(self._model.join_parts(missing))
        self.reused += len(parts) - len(missing)
        rows = iter(np.split(made.embeds, np.cumsum([part.meta["n_tokens"] for part in missing])[:-1]))
        embeds = []
        for key, known in zip(keys, found, strict=True):
            if known is None:
                known = EncoderResult({}, next(rows).copy())
                self._results.store(key, known)
            embeds.append(known.embeds)
        return EncoderResult({"modality": item.modality, **item.meta}, np.concatenate([*embeds, next(rows)]))


def _digest(part: Prepared) -> bytes:
    """The digest of all that the rows of ``part`` are computed of."""
    found = sha256()
    for name, value in sorted(part.features.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.contiguous().view(torch.uint8).numpy().data)
    return found.digest()
