"""A GGUF file in llama.cpp: its weights, and the keys and values of several sequences."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from ctypes import POINTER, c_float, c_int8, c_int32, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from omnibus import errors
from omnibus_models.llama_cpp.library import TokenBatch, load_library, open_model

#: Tokens of one call of the library; longer prompts take several.
BATCH_TOKENS = 512
_BYTES = 2  # of a key's or value's number: float16
_MARKS = 2  # tokens around a text
_NO_SPACE = 1  # result of ``llama_decode``
_MROPE_TYPES, _MROPE_AXES = (8, 40), 4  # of ``llama_rope_type``; positions of a row


class SequenceToken(NamedTuple):
    """A token of the sequence ``sequence`` at ``position``; ``wants_logits`` of the next token."""

    token: int
    position: int
    sequence: int
    wants_logits: bool


class GgufModel:
    """The weights of ``file``, mapped into memory. Raises ``Fatal`` for a file that llama.cpp does not load."""

    def __init__(self, file: Path) -> None:
        self.library: Any = load_library()
        self.handle = open_model(self.library, file)
        if self.library.llama_model_has_encoder(self.handle):
            raise errors.Fatal(f"{file} has an encoder; llama.cpp serves only language models here")
        self._vocabulary = self.library.llama_model_get_vocab(self.handle)
        self.vocabulary: int = self.library.llama_vocab_n_tokens(self._vocabulary)
        self.context: int = self.library.llama_model_n_ctx_train(self.handle)
        self.width: int = self.library.llama_model_n_embd(self.handle)
        self.layers: int = self.library.llama_model_n_layer(self.handle)
        self.recurrent: bool = any(
            function(self.handle)
            for function in (self.library.llama_model_is_recurrent, self.library.llama_model_is_hybrid)
        )
        self.has_mrope: bool = self.library.llama_model_rope_type(self.handle) in _MROPE_TYPES
        self.parameters: int = self.library.llama_model_n_params(self.handle)
        self.eos = frozenset(
            token for token in range(self.vocabulary) if self.library.llama_vocab_is_eog(self._vocabulary, token)
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token. Layers that share or compress them take less."""
        library, handle = self.library, self.handle
        width = self.width // max(1, library.llama_model_n_head(handle))
        return 2 * _BYTES * self.layers * width * int(library.llama_model_n_head_kv(handle))

    def tokenize_text(self, text: str, marked: bool = False, special: bool = True) -> list[int]:
        """Return the ids of ``text`` by the file's own tokenizer.

        If ``marked``, they have its own marks around them. With ``special``, special tokens in ``text`` count as such.
        """
        data = text.encode(errors="replace")
        room = len(data) + _MARKS
        while True:
            ids = np.empty(room, np.int32)
            pointer = ids.ctypes.data_as(self.library.llama_tokenize.argtypes[3])
            count = self.library.llama_tokenize(self._vocabulary, data, len(data), pointer, room, marked, special)
            if count >= 0:
                return [int(token) for token in ids[:count]]
            room = -count  # some characters become several tokens

    def load_adapter(self, file: Path) -> int:
        """Load the LoRA adapter in ``file``; return its handle, which ends with the model. Raises ``Fatal``."""
        handle: int | None = self.library.llama_adapter_lora_init(self.handle, os.fsencode(file))
        if handle is None:
            raise errors.Fatal(f"llama.cpp cannot load the adapter {file}; its log has the reason")
        return handle

    def token_texts(self) -> Iterator[str]:
        """Yield the text of each token."""
        for token in range(self.vocabulary):
            yield self.library.llama_vocab_get_text(self._vocabulary, token).decode(errors="replace")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.llama_model_free(self.handle)


class GgufContext:
    """Keys and values of up to ``sequences`` sequences of ``context`` tokens. For one thread at a time.

    ``threads`` 0 is one for each core. Raises ``Fatal`` without enough memory.
    """

    def __init__(self, model: GgufModel, sequences: int, context: int, threads: int) -> None:
        self._model, self._library = model, model.library
        params = self._library.llama_context_default_params()
        params.n_ctx, params.n_seq_max = sequences * context, sequences
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads or os.cpu_count() or 1
        self._handle = self._library.llama_init_from_model(model.handle, params)
        if not self._handle:
            gib = model.token_bytes * sequences * context / 2**30
            raise errors.Fatal(
                f"llama.cpp has no memory for {sequences} sequences of {context} tokens, about {gib:.1f} GiB; "
                "lower `context` or `batch`"
            )
        self._memory = self._library.llama_get_memory(self._handle)
        self._columns = np.zeros((3, BATCH_TOKENS), np.int32)  # tokens, positions, sequences
        self._flags = np.zeros(BATCH_TOKENS, np.int8)
        self._batch = point_batch(self._columns, self._flags)
        self._logits: dict[tuple[int, int], Tensor] = {}  # the newest view, by its address and rows
        #: Handle of the adapter of following tokens, None without one.
        self.adapter: int | None = None

    def set_adapter(self, adapter: int | None) -> None:
        """Apply ``adapter``, a handle of the model's, to following tokens. Raises ``Fatal`` if the library fails."""
        if adapter == self.adapter:
            return
        count = int(adapter is not None)
        if self._library.llama_set_adapters_lora(self._handle, (c_void_p * 1)(adapter), count, (c_float * 1)(1.0)):
            raise errors.Fatal("llama.cpp cannot apply this adapter")
        self.adapter = adapter

    def decode_tokens(self, tokens: Sequence[SequenceToken]) -> Tensor:
        """Compute ``tokens``; return logits float32 [n, V] of those that want them.

        Raises ``Fatal`` if the library fails; keys and values of ``tokens`` are then not kept.
        """
        parts = []
        for start in range(0, len(tokens), BATCH_TOKENS):
            part = tokens[start : start + BATCH_TOKENS]
            self._run_batch(part, self._batch)
            if count := sum(each.wants_logits for each in part):
                parts.append(self._copy_logits(count))
        return parts[0] if len(parts) == 1 else torch.cat([torch.empty(0, self._model.vocabulary), *parts])

    def _run_batch(self, tokens: Sequence[SequenceToken], batch: TokenBatch) -> None:
        columns = np.array(tokens, np.int32).T
        self._columns[:, : len(tokens)], self._flags[: len(tokens)] = columns[:3], columns[3]
        batch.n_tokens = len(tokens)
        result = self._library.llama_decode(self._handle, batch)
        if result:
            reason = "no space for the tokens" if result == _NO_SPACE else f"error {result}"
            raise errors.Fatal(f"llama.cpp cannot compute this step: {reason}")

    def decode_embeddings(self, rows: np.ndarray, positions: np.ndarray, sequence: int, causal: bool) -> None:
        """Compute ``rows`` float32 [n, H] of ``sequence`` in the place of tokens; returns no logits.

        ``positions`` are int [axes, n], with one axis or those of M-RoPE: time, height and width.

        Unless ``causal``, they attend to one another. Raises ``Fatal`` as ``decode_tokens``, and for more than
        ``BATCH_TOKENS`` of those.
        """
        if not causal and len(rows) > BATCH_TOKENS:
            raise errors.Fatal(f"an image of {len(rows)} rows is too large for llama.cpp; at most {BATCH_TOKENS}")
        batch = point_batch(self._columns, self._flags)
        batch.token = None
        self._library.llama_set_causal_attn(self._handle, causal)
        try:
            for start in range(0, len(rows), BATCH_TOKENS):
                part = np.ascontiguousarray(rows[start : start + BATCH_TOKENS], np.float32)
                batch.embd = part.ctypes.data
                places = np.zeros((_MROPE_AXES if self._model.has_mrope else 1, len(part)), np.int32)
                places[: len(positions)] = positions[:, start : start + BATCH_TOKENS]
                batch.pos = places.ctypes.data_as(POINTER(c_int32))
                self._run_batch([SequenceToken(0, 0, sequence, False)] * len(part), batch)
        finally:
            self._library.llama_set_causal_attn(self._handle, True)

    def _copy_logits(self, count: int) -> Tensor:
        """Return the ``count`` rows of logits that the last batch requested, in its order: float32 [count, V]."""
        address = self._library.llama_get_logits(self._handle)
        view = self._logits.get((address, count))
        if view is None:  # the library seldom moves them, and a new view takes longer than the copy
            numbers = (c_float * (count * self._model.vocabulary)).from_address(address)
            view = torch.from_numpy(np.ctypeslib.as_array(numbers)).view(count, -1)
            self._logits = {(address, count): view}
        return view.clone()

    def truncate_sequence(self, sequence: int, length: int) -> bool:
        """Remove all tokens of ``sequence`` but the first ``length``. Returns False if its state cannot be cut."""
        return bool(self._library.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def copy_sequence(self, source: int, target: int) -> None:
        """Copy all tokens of ``source`` to ``target``, which must be empty."""
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.llama_free(self._handle)


def point_batch(columns: np.ndarray, flags: np.ndarray) -> TokenBatch:
    """Return a batch that reads two arrays, which must outlive it.

    ``columns`` int32 [3, n] are tokens, positions and sequences; ``flags`` int8 [n] request logits.
    """
    tokens, positions, _ = (column.ctypes.data_as(POINTER(c_int32)) for column in columns)
    counts = np.ones(len(flags), np.int32)  # sequences of each token
    first = columns[2].ctypes.data
    pointers = (POINTER(c_int32) * len(flags))(
        *(ctypes.cast(first + columns.itemsize * index, POINTER(c_int32)) for index in range(len(flags)))
    )
    batch = TokenBatch(0, tokens, None, positions, counts.ctypes.data_as(POINTER(c_int32)), pointers)
    batch.logits = flags.ctypes.data_as(POINTER(c_int8))
    batch.owned = (counts, pointers)
    return batch
