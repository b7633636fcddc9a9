"""Parts of media that were encoded before: when an audio clip grows, only its end is new."""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch

from omnibus_encoder.cache_key import EncoderIdentity
from omnibus_encoder.embedding_cache import EmbeddingCache, EncoderResult
from omnibus_models.contract import MediaEncoder, Prepared

#: The modality of the keys of parts; no file has it.
_PART = "part of "


class SaltedItem(NamedTuple):
    """A prepared item, and the ``salt`` of those that share its results."""

    item: Prepared
    salt: str


class PartEncoder:
    """Encodes items of ``model`` with ``encode``, reusing parts that ``results`` contains.

    The key of a part is the digest of its features, from which its rows are computed. Features at the beginning may
    therefore depend on later content: features that differ make a different part.
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

    def find_keys(self, salted_item: SaltedItem, parts: Sequence[Prepared]) -> list[bytes]:
        """Return the keys of all ``parts`` but the last, which may be incomplete."""
        modality = _PART + salted_item.item.modality
        return [self._identity.item_key(_digest(part), modality, salted_item.salt) for part in parts[:-1]]

    async def encode_missing(self, item: Prepared, parts: Sequence[Prepared], keys: Sequence[bytes]) -> EncoderResult:
        """Return the result of ``item``, which is cut into ``parts``."""
        results = [self._results.peek(key) for key in keys]
        missing = [part for part, result in zip(parts, [*results, None], strict=True) if result is None]
        new_result = await self._encode(self._model.join_parts(missing))
        self.reused += len(parts) - len(missing)
        rows = iter(np.split(new_result.embeds, np.cumsum([part.meta["n_tokens"] for part in missing])[:-1]))
        embeds = []
        for key, part_result in zip(keys, results, strict=True):
            if part_result is None:
                part_result = EncoderResult({}, next(rows).copy())
                self._results.store(key, part_result)
            embeds.append(part_result.embeds)
        return EncoderResult({"modality": item.modality, **item.meta}, np.concatenate([*embeds, next(rows)]))


def _digest(part: Prepared) -> bytes:
    """Return the digest of all inputs to the rows of ``part``."""
    hasher = sha256()
    for name, value in sorted(part.features.items()):
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        hasher.update(value.contiguous().view(torch.uint8).numpy().data)
    return hasher.digest()
