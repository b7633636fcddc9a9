"""A language model whose layers llama.cpp computes; its tokenizer and chat template are those of the GGUF file."""

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models.families._text_only import TextThinker
from omnibus_models.llama_cpp.context import GgufContext, GgufModel, SequenceToken


class NativeSequence:
    """A sequence of ``length`` tokens in llama.cpp. Without references, its ``number`` returns to the heap ``free``.

    After ``in_slot`` it may continue with tokens of an answer.
    """

    def __init__(self, number: int, free: list[int]) -> None:
        self.number = number
        self.length = 0
        self.in_slot = False
        self._free = free

    def __del__(self) -> None:
        heapq.heappush(self._free, self.number)


class LlamaCppThinker(TextThinker):
    """See ``contract.Thinker``. The input of the layers is the id of a token, so H is 1, and hidden rows are logits.

    The model keeps keys and values itself: after ``reserve_memory``, those of several sequences. A cache is a
    ``NativeSequence``.
    """

    windows = True

    def __init__(self, file: Path) -> None:
        self._gguf = GgufModel(file)
        super().__init__(_TokenIds(self._gguf), file)
        self.recurrent = self._gguf.recurrent
        self._context: GgufContext | None = None
        self._free: list[int] = []

    @property
    def parameters(self) -> int:
        return self._gguf.parameters

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token."""
        return self._gguf.token_bytes

    def _find_backbone(self, module: Any) -> Any:
        return module

    def _find_head(self, module: Any) -> Any:
        return nn.Identity()

    def tokenize_text(self, text: str) -> list[int]:
        """Return the ids of ``text`` by llama.cpp's own tokenizer."""
        return self._gguf.tokenize_text(text)

    def reserve_memory(self, sequences: int, context: int, threads: int) -> None:
        """Allocate memory for ``sequences`` of ``context`` tokens. Raises ``Fatal`` without enough of it."""
        self._context = GgufContext(self._gguf, sequences, context, threads)
        self._free = list(range(sequences))

    @property
    def _sequences(self) -> GgufContext:
        if self._context is None:
            raise errors.Fatal("llama.cpp has no memory for sequences: reserve some first")
        return self._context

    def new_cache(self) -> NativeSequence:
        """Return an empty sequence, with the lowest free number. Raises ``Fatal`` if all are in use."""
        if not self._free:
            raise errors.Fatal("all sequences of llama.cpp are in use; send the request again")
        sequence = NativeSequence(heapq.heappop(self._free), self._free)
        self._sequences.truncate_sequence(sequence.number, 0)
        return sequence

    def fork_sequence(self, source: NativeSequence, length: int) -> NativeSequence:
        """Return a sequence of the first ``length`` tokens of ``source``, which does not change."""
        sequence = self.new_cache()
        self._sequences.copy_sequence(source.number, sequence.number)
        self.cut_sequence(sequence, length)
        return sequence

    def cut_sequence(self, sequence: NativeSequence, length: int) -> None:
        """Remove all tokens of ``sequence`` but the first ``length``. Raises ``Fatal`` if the model cannot."""
        if not self._sequences.truncate_sequence(sequence.number, length):
            raise errors.Fatal("llama.cpp cannot shorten a sequence of this model")
        sequence.length = length

    def forward(self, inputs: Tensor, positions: Tensor, cache: NativeSequence, mask: Any) -> Tensor:
        """See ``contract.Decoder``: [1, T, 1] to logits of the last token, [1, 1, V]."""
        tokens, places = inputs[0, :, 0].tolist(), positions[0, 0].tolist()
        rows = [
            SequenceToken(int(token), place, cache.number, place == places[-1])
            for token, place in zip(tokens, places, strict=True)
        ]
        logits = self._sequences.decode_tokens(rows)[None]
        cache.length = places[-1] + 1
        return logits

    def decode_rows(self, tokens: Sequence[int], positions: Sequence[int], numbers: Sequence[int]) -> Tensor:
        """Return the logits float32 [B, V] after one token of each of the sequences ``numbers``.

        The library computes rows of consecutive ascending numbers together, and all others one after another.
        """
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        rows = [SequenceToken(tokens[at], positions[at], numbers[at], True) for at in order]
        logits = self._sequences.decode_tokens(rows)
        if order == list(range(len(order))):
            return logits
        return torch.empty_like(logits).index_copy_(0, torch.tensor(order), logits)


class _TokenIds(nn.Module):
    """In the place of a model: what a ``LanguageDecoder`` reads of one, and embeddings that are the ids themselves."""

    def __init__(self, model: GgufModel) -> None:
        super().__init__()
        from transformers import GenerationConfig, PreTrainedConfig

        self.config = PreTrainedConfig(
            num_hidden_layers=model.layers, max_position_embeddings=model.context, vocab_size=model.vocabulary
        )
        self.generation_config = GenerationConfig(eos_token_id=sorted(model.eos))
        ids = torch.arange(model.vocabulary, dtype=torch.float32)[:, None]
        self._table = nn.Embedding.from_pretrained(ids)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of embeddings, float32 [V, 1]."""
        return self._table
