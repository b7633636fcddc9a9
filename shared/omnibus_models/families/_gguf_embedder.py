"""Embedders in GGUF files: llama.cpp tokenises texts and computes one vector for each."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models.contract import Prepared
from omnibus_models.families._lengths import Lengths
from omnibus_models.llama_cpp.context import GgufModel, point_batch

#: Tokens and texts of one call of the library. A longer text has a call of its own.
BATCH_TOKENS, BATCH_TEXTS = 2048, 64


class GgufEmbedder:
    """See ``contract.TextEmbedder``. Vectors have length 1, and are pooled as the metadata of ``file`` says.

    ``threads`` compute them. Raises ``Fatal`` for a file that llama.cpp does not load.
    """

    def __init__(self, file: Path, threads: int) -> None:
        self._gguf = GgufModel(file)
        self._lengths = Lengths(_NativeTokenizer(self._gguf))
        self._passes = _PooledPasses(self._gguf, threads)

    @property
    def parameters(self) -> int:
        return self._gguf.parameters

    def prepare_text(self, text: str | Sequence[int], prompt_name: str | None = None) -> Prepared:
        """Tokenise a text. Special tokens in it are plain text."""
        if prompt_name is not None:
            raise errors.BadRequest(
                "GGUF files have no prompts: leave out prompt_name, and write the prompt into the text",
                param="prompt_name",
            )
        context = self._gguf.context
        if isinstance(text, str):
            self._lengths.require_context([text], context, "text")
            ids = self._gguf.tokenize_text(text, marked=True, special=False)
        else:
            ids = self._check_ids(text)
        if not ids:
            raise errors.BadRequest("the text has no tokens", param="text")
        if len(ids) > context:
            raise errors.ContextTooLong(f"the text has {len(ids)} tokens; this model takes {context}", param="text")
        return Prepared("text", {"ids": torch.tensor(ids)}, {"n_tokens": len(ids)})

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        vocabulary = self._gguf.vocabulary
        if any(not 0 <= id < vocabulary for id in ids):
            raise errors.BadRequest(
                f"tokens of this model are from 0 to {vocabulary - 1}: send texts, or tokens from its tokenizer",
                param="text",
            )
        return list(ids)

    def embed(self, batch: Sequence[Prepared]) -> list[Tensor]:
        """Compute the texts in as few calls as possible."""
        texts = [text.features["ids"].tolist() for text in batch]
        vectors = [self._passes.embed_texts(group) for group in _group_texts(texts)]
        return list(nn.functional.normalize(torch.from_numpy(np.concatenate(vectors)), dim=-1))


class _PooledPasses:
    """Passes over several texts, for one thread at a time. Memory grows with the longest text so far."""

    def __init__(self, model: GgufModel, threads: int) -> None:
        self._model, self._library, self._threads = model, model.library, threads
        self._width: int = self._library.llama_model_n_embd_out(model.handle)
        self._tokens = 0
        self._handle: int | None = None
        self._grow(min(BATCH_TOKENS, model.context))

    def embed_texts(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the pooled vectors of ``texts``: float32 [texts, width]. Raises ``Fatal`` if the library fails."""
        lengths = [len(ids) for ids in texts]
        count = sum(lengths)
        if count > self._tokens:
            self._grow(count)
        self._columns[0, :count] = np.concatenate(texts)
        self._columns[1, :count] = np.concatenate([np.arange(length) for length in lengths])
        self._columns[2, :count] = np.repeat(np.arange(len(texts)), lengths)
        self._batch.n_tokens = count
        if self._memory:
            self._library.llama_memory_clear(self._memory, False)
        result = (self._library.llama_decode if self._memory else self._library.llama_encode)(self._handle, self._batch)
        if result:
            raise errors.Fatal(f"llama.cpp cannot embed these texts: error {result}")
        return np.stack([self._copy_vector(number) for number in range(len(texts))])

    def _copy_vector(self, number: int) -> np.ndarray:
        pointer = self._library.llama_get_embeddings_seq(self._handle, number)
        if not pointer:
            raise errors.Fatal("llama.cpp has no vector of this text: the file's pooling_type is not supported")
        return np.ctypeslib.as_array(pointer, (self._width,)).copy()

    def _grow(self, tokens: int) -> None:
        """Allocate memory for passes of ``tokens``: each text must be in one of the library's own batches."""
        self._free()
        tokens = max(tokens, min(2 * self._tokens, self._model.context))
        self._tokens = -(-tokens // BATCH_TEXTS) * BATCH_TEXTS  # the library ends its process at other numbers
        params: Any = self._library.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = min(self._tokens, self._model.context), BATCH_TEXTS, True
        params.n_batch = params.n_ubatch = self._tokens
        params.n_threads = params.n_threads_batch = self._threads or os.cpu_count() or 1
        params.embeddings = True
        self._handle = self._library.llama_init_from_model(self._model.handle, params)
        if not self._handle:
            raise errors.Fatal(f"llama.cpp has no memory for a text of {self._tokens} tokens; send shorter ones")
        self._memory = self._library.llama_get_memory(self._handle)
        self._columns = np.zeros((3, self._tokens), np.int32)  # tokens, positions, texts
        self._flags = np.ones(self._tokens, np.int8)
        self._batch = point_batch(self._columns, self._flags)

    def _free(self) -> None:
        if self._handle:
            self._library.llama_free(self._handle)
        self._handle = None

    def __del__(self) -> None:
        self._free()


class _NativeTokenizer:
    """Tokenizer of a GGUF file, as ``Lengths`` reads one."""

    def __init__(self, model: GgufModel) -> None:
        self._model = model

    def get_vocab(self) -> Iterator[str]:
        return self._model.token_texts()

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": self._model.tokenize_text(text, add_special_tokens, special=False)}


def _group_texts(texts: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Yield consecutive ``texts`` that fit into one call."""
    group: list[list[int]] = []
    for ids in texts:
        if group and (len(group) == BATCH_TEXTS or sum(map(len, group)) + len(ids) > BATCH_TOKENS):
            yield group
            group = []
        group.append(ids)
    if group:
        yield group
