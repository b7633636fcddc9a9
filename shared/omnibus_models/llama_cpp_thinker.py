"""A language model whose layers llama.cpp computes; its tokenizer and chat template are those of the GGUF file."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus.checkpoints.gguf_header import find_projector, read_gguf_header, read_projector_type
from omnibus_models.adapters import Adapters
from omnibus_models.contract import PLAIN_PROMPT, Encoded, PromptOptions
from omnibus_models.families._language import LanguageThinker, SequentialThinker
from omnibus_models.families._text_only import TextThinker
from omnibus_models.llama_cpp.context import GgufContext, GgufModel, SequenceToken
from omnibus_models.llama_cpp.projector import CAUSAL_ROW, HEAD_COLUMNS


class ImageMark(NamedTuple):
    """The text of an image: a chat template has ``written``, for which a prompt gets ``framed``.

    The image's rows replace ``token`` in it. Files without a chat template get ``template``.
    """

    token: str
    written: str
    framed: str
    template: str = ""


_QWEN_MARK = ImageMark("<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>")
#: By the types of projectors. Rows of images have the tokens around them.
_MARKS = {
    "gemma3": ImageMark("<start_of_image>", "<start_of_image>", "\n\n<start_of_image>\n\n"),
    "idefics3": ImageMark("<image>", "<image>", "<image>"),
    "mlp": ImageMark(
        "<image>",
        "<image>",
        "<image>",
        "{% for message in messages %}{% if message.role != 'system' %}{{ message.role | upper }}: {% endif %}"
        "{{ message.content }} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    ),
    "qwen2vl_merger": _QWEN_MARK,
    "qwen2.5vl_merger": _QWEN_MARK,
}


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


class NativeAdapters(Adapters):
    """LoRA adapters in the ``files`` by name. llama.cpp applies one to all rows of a call."""

    def __init__(self, model: GgufModel, files: Mapping[str, Path]) -> None:
        super().__init__(list(files), 0, torch.device("cpu"))
        self._handles = [model.load_adapter(file) for file in files.values()]
        self._rows: Sequence[int | None] = ()

    @contextmanager
    def chosen(self, numbers: Sequence[int | None]) -> Iterator[bool]:
        """See ``Adapters``."""
        self._rows = numbers
        try:
            yield any(number is not None for number in numbers)
        finally:
            self._rows = ()

    def row_handles(self, count: int) -> list[int | None]:
        """Return the adapter's handle, or None, of each of ``count`` rows."""
        return [None if number is None else self._handles[number] for number in self._rows or [None] * count]


class LlamaCppThinker(TextThinker):
    """See ``contract.Thinker``. The input of the layers is the id of a token, so H is 1, and hidden rows are logits.

    The model keeps keys and values itself: after ``reserve_memory``, those of several sequences. A cache is a
    ``NativeSequence``. ``adapters`` are GGUF files of LoRA adapters by name.
    With ``sees``, prompts have images, whose rows are those of ``llama_cpp.projector`` with the file's projector.
    """

    windows = True

    def __init__(self, file: Path, adapters: Mapping[str, Path] = MappingProxyType({}), sees: bool = False) -> None:
        self._gguf = GgufModel(file)
        projector = find_projector(file) if sees else None
        self._mark = _MARKS[read_projector_type(read_gguf_header(projector))] if projector else ImageMark("", "", "")
        super().__init__(_TokenIds(self._gguf), file, ("image",) if projector else ())
        self._template = self._template or self._mark.template
        self.axes = 3 if sees and self._gguf.has_mrope else 1
        self.splits_prompts = not sees  # the rows of an image may attend to one another
        self._native_adapters = NativeAdapters(self._gguf, adapters)
        self.adapters = self._native_adapters if adapters else None
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

    def embed(self, ids: Tensor) -> Tensor:
        """Return ids as rows: [...] int64 to float32 [..., 1]."""
        return ids[..., None].float()

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

    def _placeholder_id(self, modality: str) -> int:
        # In vocabularies without the token, it gets the id after the last one, which llama.cpp never sees.
        self._tokenizer.add_tokens(self._mark.token, special_tokens=True)
        return int(self._tokenizer.convert_tokens_to_ids(self._mark.token))

    def _frame_placeholders(self, text: str) -> str:
        return text.replace(self._mark.written, self._mark.framed) if self._placeholders else text

    def _tokenize_text(self, text: str) -> list[int]:
        return LanguageThinker._tokenize_text(self, text) if self._placeholders else super()._tokenize_text(text)

    def _render_chat(self, chat: Sequence[Mapping[str, Any]], options: PromptOptions = PLAIN_PROMPT) -> str:
        if self._placeholders and "image" not in self._template:  # it takes only strings
            chat = [{**message, "content": self._write_content(message["content"])} for message in chat]
        return super()._render_chat(chat, options)

    def _write_content(self, content: Any) -> str:
        texts = [content] if isinstance(content, str) else [part.get("text", self._mark.written) for part in content]
        return "\n".join(texts)

    def _convert_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, list | tuple) and any(part.get("type") != "text" for part in content):
            return SequentialThinker._convert_message(self, message)
        return super()._convert_message(message)

    def _row_width(self, modality: str) -> int:
        return HEAD_COLUMNS + self._gguf.width

    def _widen_inputs(self, inputs: Tensor) -> Tensor:
        return nn.functional.pad(inputs, (0, HEAD_COLUMNS - 1 + self._gguf.width))

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        is_row = [token in self._placeholders for token in ids[0].tolist()]
        parts, end, place = [], 0, 0
        for item in media:  # rows have positions from that of their first one on
            start = is_row.index(True, end)
            parts.append(torch.arange(place, place + start - end).expand(HEAD_COLUMNS - 1, -1))
            parts.append(item.embeds[:, 1:HEAD_COLUMNS].T.long() + place + start - end)
            place, end = int(parts[-1].max()) + 1, start + len(item.embeds)
        parts.append(torch.arange(place, place + len(is_row) - end).expand(HEAD_COLUMNS - 1, -1))
        return torch.cat(parts, 1)[: self.axes, None], place - end

    def forward(self, inputs: Tensor, positions: Tensor, cache: NativeSequence, mask: Any) -> Tensor:
        """See ``contract.Decoder``: [1, T, 1] to logits of the last token, [1, 1, V].

        Rows of images are wider.
        """
        kinds, places = inputs[0, :, 0].long().clamp(max=0), positions[0, 0].tolist()
        [adapter] = self._native_adapters.row_handles(1)
        self._sequences.set_adapter(adapter)
        start = 0
        for kind, count in zip(*(each.tolist() for each in kinds.unique_consecutive(return_counts=True)), strict=True):
            run = slice(start, start := start + count)
            if kind < 0:
                rows, places_of_rows = inputs[0, run, HEAD_COLUMNS:].numpy(), positions[:, 0, run].numpy()
                self._sequences.decode_embeddings(rows, places_of_rows, cache.number, kind == CAUSAL_ROW)
                continue
            logits = self._sequences.decode_tokens(
                [
                    SequenceToken(int(token), place, cache.number, place == places[-1])
                    for token, place in zip(inputs[0, run, 0].tolist(), places[run], strict=True)
                ]
            )
        cache.length += len(places)
        return logits[None]

    def group_rows(self, count: int, places: Sequence[int]) -> list[tuple[int | None, list[int]]]:
        """Return rows by their adapter, the one in use first.

        ``places`` are those of the rows among the ``count`` of the current pass.
        """
        groups: dict[int | None, list[int]] = {self._sequences.adapter: []}
        handles = self._native_adapters.row_handles(count)
        for place in places:
            groups.setdefault(handles[place], []).append(place)
        return [(adapter, group) for adapter, group in groups.items() if group]

    def decode_rows(
        self, tokens: Sequence[int], positions: Sequence[int], numbers: Sequence[int], adapter: int | None = None
    ) -> Tensor:
        """Return the logits float32 [B, V] after one token of each sequence.

        ``numbers`` are those of the sequences, which have one ``adapter``.

        The library computes rows of consecutive ascending numbers together, and all others one after another.
        """
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        rows = [SequenceToken(tokens[at], positions[at], numbers[at], True) for at in order]
        self._sequences.set_adapter(adapter)
        logits = self._sequences.decode_tokens(rows)
        if order == list(range(len(order))):
            return logits
        return torch.empty_like(logits).index_copy_(0, torch.tensor(order), logits)


class _TokenIds(nn.Module):
    """In the place of a model: what a ``LanguageDecoder`` reads of one."""

    def __init__(self, model: GgufModel) -> None:
        super().__init__()
        from transformers import GenerationConfig, PreTrainedConfig

        self.config = PreTrainedConfig(
            num_hidden_layers=model.layers, max_position_embeddings=model.context, vocab_size=model.vocabulary
        )
        self.generation_config = GenerationConfig(eos_token_id=sorted(model.eos))
        self._table = nn.Embedding(1, 1)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return a table with the width of the ids."""
        return self._table
