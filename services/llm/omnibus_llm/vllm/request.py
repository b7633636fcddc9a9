"""A request in the engine's form: ids, embeddings in shared memory, and inputs of a talker.

Tokenization of prompts: short ones inline, others in a thread.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest, StageFailed
from omnibus.executor.runner import Item
from omnibus_engines.component import run_in_pool
from omnibus_llm.vllm.protocol import Medium, Positions, SharedBuffer
from omnibus_models.contract import PLAIN_PROMPT, Encoded, PrefillInputs, PromptOptions, Reader, TokenizedPrompt

#: Offsets of embeddings are multiples of this, so that any dtype can be read in place.
_ALIGNMENT_BYTES = 64
#: Rows of a piece of audio. More rows recompute more of a growing clip; fewer give an engine more items.
PIECE_ROWS = 32
_FLOATS = (np.float16, np.float32)
_ROW = np.dtype(np.float32)


def is_text(prompt: TokenizedPrompt, items: Sequence[Item], voice: str | None) -> bool:
    """True for a request of text only, without speech.

    The engine counts its positions, and nothing must be copied.
    """
    return not (items or prompt.modalities) and voice is None


class VllmRequest:
    """One request; all methods run in a thread, except for a request of text only. Its contents are valid.

    Raises ``BadRequest`` for items that are not those of the prompt, and ``ContextTooLong``.
    """

    def __init__(self, reader: Reader, prompt: TokenizedPrompt, items: Sequence[Item], voice: str | None) -> None:
        self.voice: TalkerInputs | None = None
        self.parcel: SharedBuffer | None = None
        self.media: list[Medium] = []
        self.positions: Positions | None = None
        self._prompt: int | None = None  # its tokens, if ``ids`` include some of the answer
        self.ids: Sequence[int] = prompt.ids
        if not is_text(prompt, items, voice):
            self._read_inputs(reader, prompt, items, voice)

    def _read_inputs(self, reader: Reader, prompt: TokenizedPrompt, items: Sequence[Item], voice: str | None) -> None:
        media = [Encoded(_read_embedding(item), item.data) for item in items]
        layout = reader.layout(prompt, media)
        self.ids = layout.ids
        # Validate first: memory that an error refers to is freed only by the garbage collector.
        if voice is not None:
            self.voice = TalkerInputs(reader, reader.assemble_prefill(prompt, media), voice)
        if media:
            self.parcel = SharedBuffer()
            # An item with text between its rows is several items for an engine.
            for run in layout.media_runs(media):
                rows, meta = media[run.item].embeds[run.rows].to(reader.dtype), items[run.item].data
                places = layout.positions[:, run.start : run.start + len(rows)]
                in_line = meta["modality"] == "audio" and _is_in_line(places)
                self.media += _pack_run(self.parcel, rows, meta, run.start, in_line=in_line)
            self.positions = Positions(layout.positions.to(torch.int32), layout.delta)

    def begin_after(self, tokens: Sequence[int]) -> None:
        """Start after ``tokens`` of the answer, generated elsewhere; the engine prefills them."""
        self._prompt = len(self.ids)
        self.ids, self.positions = self.inputs_after(tokens)

    def inputs_after(self, tokens: Sequence[int]) -> tuple[Sequence[int], Positions | None]:
        """Return ids and positions of the prompt and ``tokens`` of its answer."""
        length = len(self.ids) if self._prompt is None else self._prompt
        positions = self.positions
        if positions is not None:
            prompt, delta = positions.prompt[:, :length], positions.delta
            more = torch.arange(len(tokens), dtype=prompt.dtype) + length + delta
            positions = Positions(torch.cat([prompt, more.expand(len(prompt), -1)], dim=1), delta)
        return [*self.ids[:length], *tokens], positions

    def close(self) -> None:
        """Release the memory. The engine has its own descriptor as soon as it reads."""
        if self.parcel is not None:
            self.parcel.close()
        if self.voice is not None:
            self.voice.close()


class TalkerRows:
    """Talker inputs of one request after its ``first`` token.

    Each other token has a row; ``length`` is the prompt's. The rows of the prompt are not read.
    """

    def __init__(self, reader: Reader, length: int, first: Sequence[int]) -> None:
        self.rows = SharedBuffer()
        self._reader = reader
        self._length = length
        self._last = list(first)  # the last token, empty before the first
        self._count = 0

    def close(self) -> None:
        """Release the memory."""
        self.rows.close()

    def next_sides(self, tokens: Sequence[int]) -> list[np.ndarray]:
        """Return the talker's input for each of the next ``tokens``.

        Runs in a thread; raises ``StageFailed`` without hidden rows.
        """
        sides: list[np.ndarray] = []
        # The row of a token is computed from the one before it.
        eaten = [*self._last, *tokens][:-1]
        if eaten:
            hidden = self._read_hidden(self._length + self._count, len(eaten))
            sides.extend(_to_numpy(self._reader.talker_row(self._reader.embed(torch.tensor(eaten)), hidden)))
            self._count += len(eaten)
        self._last = list(tokens[-1:]) or self._last
        return sides

    def _read_hidden(self, first: int, count: int) -> Tensor:
        width = self._reader.width * _ROW.itemsize
        row_bytes = self.rows.read(first * width, count * width)
        if row_bytes is None:
            raise StageFailed("the engine did not return its hidden rows, which speech needs; send the request again")
        rows = np.frombuffer(bytearray(row_bytes), _ROW).reshape(count, self._reader.width)
        return torch.from_numpy(rows).to(self._reader.dtype)


class TalkerInputs(TalkerRows):
    """Talker inputs of one request: the prompt's rows with the first token, a row with each other."""

    def __init__(self, reader: Reader, prefill: PrefillInputs, voice: str) -> None:
        # An unknown voice is the client's error, and better found before the engine works.
        reader.talker_prompt(prefill, torch.zeros_like(prefill.inputs), voice)
        super().__init__(reader, prefill.inputs.shape[0], [])
        self.layout = prefill.layout.numpy()
        self._prefill = prefill
        self._voice = voice

    def next_sides(self, tokens: Sequence[int]) -> list[np.ndarray]:
        if self._last or not tokens:
            return super().next_sides(tokens)
        hidden = self._read_hidden(0, self._length)
        prompt = _to_numpy(self._reader.talker_prompt(self._prefill, hidden, self._voice))
        return [prompt, *super().next_sides(tokens)]


def _read_embedding(item: Item) -> Tensor:
    array = item.array
    if array is None or array.ndim != 2 or array.dtype not in _FLOATS:
        raise BadRequest(
            "a media item must have an embedding of float numbers and shape [tokens, width]", param="items"
        )
    if not np.isfinite(array).all():
        raise BadRequest("a media item's embedding has values that are not numbers", param="items")
    return torch.from_numpy(array)


def _pack_run(
    parcel: SharedBuffer, rows: Tensor, meta: Mapping[str, Any], start: int, *, in_line: bool
) -> Iterator[Medium]:
    """Yield the media of ``rows`` from position ``start``: one, or pieces if they are ``in_line``, as audio is.

    Prompts that continue after the same pieces start alike.
    """
    if not in_line:
        yield _pack_medium(parcel, rows, meta, start)
        return
    for begin in range(0, len(rows), PIECE_ROWS):
        yield _pack_medium(parcel, rows[begin : begin + PIECE_ROWS], {"modality": meta["modality"]}, start + begin)


def _is_in_line(places: Tensor) -> bool:
    """True if ``places``, int [axes, n], follow each other as in text.

    The modality of their item does not matter.
    """
    return bool((places == places[:1, :1] + torch.arange(places.shape[1])).all())


def _pack_medium(parcel: SharedBuffer, embeds: Tensor, meta: Mapping[str, Any], start: int) -> Medium:
    words = embeds.contiguous().view(torch.uint8).numpy()
    offset = parcel.append(words)
    parcel.append(np.zeros(-words.size % _ALIGNMENT_BYTES, np.uint8))
    return Medium(_medium_key(words, meta), meta["modality"], start, (embeds.shape[0], embeds.shape[1]), offset)


def _medium_key(words: np.ndarray, meta: Mapping[str, Any]) -> str:
    # Equal rows on another grid are another item: the model reads them at other positions.
    digest = blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=16)
    digest.update(words.data)
    return digest.hexdigest()


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.float().numpy()


P = ParamSpec("P")
R = TypeVar("R")

Messages = Sequence[Mapping[str, Any]]
#: Most characters of a prompt that is tokenized inline: waking another thread would take longer.
MAX_SHORT_CHARS = 1024


class PromptTokenizer:
    """The thread that tokenizes prompts. A tokenizer is not safe for two threads at once."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._free = threading.Lock()

    async def tokenize(
        self, reader: Reader, messages: Messages, context: int, options: PromptOptions
    ) -> TokenizedPrompt:
        """Return the prompt of ``messages`` from ``reader``; raises as that does."""
        if options is PLAIN_PROMPT and _is_short(messages) and self._free.acquire(blocking=False):
            try:
                return reader.prompt(messages, context)
            finally:
                self._free.release()
        return await self.run(self._tokenize_long, reader, messages, context, options)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``function`` in the thread. Raises ``StageUnavailable`` after ``close``."""
        return await run_in_pool(self._pool, function, *args, **kwargs)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _tokenize_long(
        self, reader: Reader, messages: Messages, context: int, options: PromptOptions
    ) -> TokenizedPrompt:
        with self._free:
            return reader.prompt(messages, context, options)


def _is_short(messages: Messages) -> bool:
    """True for a short plain text."""
    texts = [message.get("content") for message in messages]
    return all(type(text) is str for text in texts) and sum(map(len, texts)) <= MAX_SHORT_CHARS  # type: ignore[arg-type]
