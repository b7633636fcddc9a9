"""Base of the language models of all families with media in prompts.

Prompts without a chat template: a text or token ids for the model to continue.
"""

import json
import operator
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import gguf_checkpoint
from omnibus_models.attention import Attention
from omnibus_models.contract import (
    PLAIN_PROMPT,
    Encoded,
    PrefillInputs,
    PromptLayout,
    PromptOptions,
    TokenizedPrompt,
)
from omnibus_models.families import _chat_options
from omnibus_models.families._language_decoder import LanguageDecoder
from omnibus_models.families._lengths import Lengths, texts_of
from omnibus_models.families._literals import ControlTokenLiterals
from omnibus_models.families._plain_prompts import is_plain_prompt, tokenize_plain_prompt
from omnibus_models.tool_calls import USUAL, ToolFormat, detect_format, find_format

_ROLES = frozenset({"system", "user", "assistant", "tool"})


class LanguageThinker(LanguageDecoder, ABC):
    """A language model that takes media embeddings, see ``contract.Thinker``."""

    speaks = False
    #: Name of the format of its tool calls; "": that of the checkpoint's chat template.
    calls = ""
    #: Name of the format in which the prompt requests calls, if the template does not support tools.
    untold_calls = USUAL

    def __init__(self, module: Any, checkpoint: Path, modalities: Sequence[str]) -> None:
        self._tokenizer: Any = gguf_checkpoint.load_tokenizer(checkpoint)
        super().__init__(
            module, self._find_backbone(module), self._find_head(module), _stop_ids(module, self._tokenizer)
        )
        self._template = _chat_template(checkpoint, self._tokenizer)
        self._placeholders = {self._placeholder_id(kind): kind for kind in modalities}
        self._literals = ControlTokenLiterals(self._tokenizer, self._control_tokens())
        self._lengths = Lengths(self._tokenizer)
        self.tool_format: ToolFormat = find_format(self.calls or detect_format(self._template, self.untold_calls))
        self.thinks: bool = _chat_options.THINK_END in self._template
        self._special = {str(token): id for id, token in self._tokenizer.added_tokens_decoder.items() if token.special}

    def _find_backbone(self, module: Any) -> Any:
        return module.get_decoder()

    def _find_head(self, module: Any) -> Any:
        """Return the function that computes logits [B, V] of hidden rows [B, H']."""
        return module.lm_head

    @property
    def tokenizer(self) -> Any:
        """See ``contract.Reader``."""
        return self._tokenizer

    def special_id(self, text: str) -> int | None:
        """See ``contract.Reader``."""
        return self._special.get(text)

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], context: int = 0, options: PromptOptions = PLAIN_PROMPT
    ) -> TokenizedPrompt:
        """Apply the chat template and tokenise; one placeholder per media item stays in ``ids``."""
        if not messages:
            raise errors.BadRequest("messages is empty; send at least one message", param="messages")
        self._lengths.require_context(texts_of(messages), context or self.context, "messages")
        if is_plain_prompt(messages):
            plain = tokenize_plain_prompt(messages[0], self._tokenizer, self._placeholders, self.vocabulary)
            return TokenizedPrompt(plain, (), None)
        if not self._template:
            raise errors.BadRequest(
                "this model has no chat template; send your text as the prompt of /v1/completions", param="messages"
            )
        if options is not PLAIN_PROMPT or any("tool_calls" in each or "tool_call_id" in each for each in messages):
            messages, options = self._adapt_options(messages, context, options)
        chat = [self._convert_message(message) for message in messages]
        text = self._render_chat(chat, options)
        ids = self._literals.tokenize(self._frame_placeholders(text), self._tokenize_text)
        placeholder_kinds = [self._placeholders[token] for token in ids if token in self._placeholders]
        media_kinds = tuple(_media_of(chat))
        if sorted(placeholder_kinds) != sorted(media_kinds):
            raise errors.BadRequest("this model's chat template does not take media in this place", param="messages")
        return TokenizedPrompt(tuple(ids), media_kinds, self.thinks and text.rstrip().endswith(_chat_options.THINK))

    def encode_text(self, text: str, marked: bool = False, context: int = 0) -> tuple[int, ...]:
        """Return the ids of ``text`` without a template.

        With ``marked``, the tokeniser's own marks are added around it, unlike in answers.
        """
        self._lengths.require_context([text], context or self.context, "text")
        marked_text = self._mark_text(text, own=not marked)
        return tuple(self._frame_text(self._literals.tokenize(marked_text, self._tokenize_plain), marked))

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Decode ids without control tokens."""
        result: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return result

    @torch.no_grad()
    def assemble_prefill(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PrefillInputs:
        """Replace each placeholder by its item's embeddings."""
        layout = self.layout(prompt, media)
        inputs = self.embed(torch.tensor(layout.ids, device=self.device))
        if media:
            inputs = self._widen_inputs(inputs)
        for run in layout.media_runs(media):
            rows = self._project_rows(media[run.item].embeds[run.rows].to(self.device, self.dtype))
            inputs[run.start : run.start + len(rows), : rows.shape[1]] = rows
        positions, is_media = layout.positions.to(self.device), layout.media.to(self.device)
        how = self._prefill_attention(layout, media)
        return PrefillInputs(inputs, positions, layout.delta, is_media, how, self._talker_layout(layout, media))

    def layout(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PromptLayout:
        """Repeat each placeholder for the rows of its item, and count positions."""
        _check_items(prompt, media)
        for item in media:
            self._check_item(item)
        ids, starts = self._expand_prompt(prompt, media)
        self._check_context(len(ids))
        # Positions are counted in a loop over the media, on the CPU, which does not wait for a device.
        positions, delta = self._count_positions(torch.tensor([ids]), media)
        is_media = torch.tensor([token in self._placeholders for token in ids])
        return PromptLayout(ids, starts, positions[:, 0], int(delta), is_media)

    def talker_prompt(self, prefill: PrefillInputs, hidden: Tensor, voice: str) -> Tensor:
        """This family has no talker: always ``BadRequest``."""
        raise errors.BadRequest("this model has no audio output; request text", param="modalities")

    def talker_row(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """This family has no talker: always ``BadRequest``."""
        raise errors.BadRequest("this model has no audio output; request text", param="modalities")

    # Differences between families

    @abstractmethod
    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int | Tensor]:
        """Return [axes, 1, T] positions and decoded tokens' delta, from the request alone."""

    @abstractmethod
    def _row_count(self, meta: Mapping[str, Any]) -> int:
        """Return the number of rows of an item with ``meta``.

        Raises ``KeyError``, ``OverflowError``, ``TypeError`` or ``ValueError``.
        """

    def _row_width(self, modality: str) -> int:
        """Return the width of the rows of an item of ``modality``."""
        return self.width

    def _talker_layout(self, layout: PromptLayout, media: Sequence[Encoded]) -> Tensor | None:
        """Return the places of a talker's rows: None for positions, see ``PrefillInputs``."""
        return None

    def _widen_inputs(self, inputs: Tensor) -> Tensor:
        """Pad [T, H] with zeros to [T, width of the widest rows]."""
        return inputs

    def _project_rows(self, rows: Tensor) -> Tensor:
        """Project the rows of an item to the input of the layers: [n, H]."""
        return rows

    def _prefill_attention(self, layout: PromptLayout, media: Sequence[Encoded]) -> Attention | None:
        """See ``contract.PrefillInputs``."""
        return None

    def _control_tokens(self) -> tuple[str, ...]:
        """Return tokens that are plain text in users' messages, see ``control_tokens``."""
        return control_tokens(self._tokenizer, self._placeholders)

    def _placeholder_id(self, modality: str) -> int:
        """Return the id for an item of ``modality`` and its rows."""
        module: Any = self.module
        return int(getattr(module.config, f"{modality}_token_id"))

    def _frame_placeholders(self, text: str) -> str:
        """Return a rendered chat with marks around each item's rows."""
        return text

    def _expand_placeholder(self, token: int, item: Encoded) -> list[int]:
        """Return the ids for one placeholder ``token``: one for each row of ``item``, and text between them."""
        return [token] * item.embeds.shape[0]

    # Prompts

    def _adapt_options(
        self, messages: Sequence[Mapping[str, Any]], context: int, options: PromptOptions
    ) -> tuple[Sequence[Mapping[str, Any]], PromptOptions]:
        """Convert ``messages`` and ``options`` for this template.

        Raises ``BadRequest`` and ``ContextTooLong``.
        """
        calls = [message["tool_calls"] for message in messages if message.get("tool_calls")]
        parts_text = [json.dumps(each, ensure_ascii=False) for each in (*options.tools, *calls, options.template)]
        self._lengths.require_context(parts_text, context or self.context, "tools")
        options = _chat_options.adapt_options(options, self._template, self._mark_text)
        if "tools" in self._template:
            return messages, options
        messages = _chat_options.write_tools(messages, options.tools, self.tool_format, self._mark_text)
        return messages, PromptOptions((), options.template)

    def _render_chat(self, chat: Sequence[Mapping[str, Any]], options: PromptOptions = PLAIN_PROMPT) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                chat,
                tools=list(options.tools) or None,
                chat_template=self._template,
                tokenize=False,
                **{"add_generation_prompt": True, **options.template},
            )
        except (TemplateError, TypeError, ValueError):
            # A template's error is for programmers, and may contain the user's text.
            raise errors.BadRequest(
                "this model's chat template does not take these messages. User and assistant must take turns, and a "
                "system message, if the model takes one, must be the first",
                param="messages",
            ) from None
        return text

    def _convert_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise errors.BadRequest(f"unknown role {role!r}; use system, user, assistant or tool", param="messages")
        more = _chat_options.convert_extras(message, self._mark_text)
        own = role == "assistant"  # templates look for reasoning in a model's messages
        if isinstance(content, str):
            return {"role": role, "content": self._mark_text(content, own=own), **more}
        if not isinstance(content, list | tuple) or not content:
            raise errors.BadRequest("content must be text or a list of parts", param="messages")
        return {"role": role, "content": [self._convert_part(part, own) for part in content], **more}

    def _convert_part(self, part: Any, own: bool = False) -> dict[str, str]:
        kind = str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
        if kind == "text":
            return {"type": "text", "text": self._mark_text(part.get("text"), own=own)}
        if kind not in self._placeholders.values():
            kinds = ", ".join(["text", *self._placeholders.values()])
            raise errors.BadRequest(f"this model takes no content part of type {kind!r}; use {kinds}", param="messages")
        return {"type": kind}

    def _mark_text(self, text: Any, *, own: bool = False) -> str:
        if not isinstance(text, str):
            raise errors.BadRequest("a text part needs a string", param="messages")
        return self._literals.mark_tokens(text, own=own)

    def _tokenize_plain(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _frame_text(self, ids: list[int], marked: bool) -> list[int]:
        """Return ``ids``, and if ``marked``, the tokeniser's marks around a text."""
        if not marked:
            return ids
        sample = self._tokenize_plain("a")
        sample_ids: list[int] = self._tokenizer("a")["input_ids"]
        begin = next(at for at in range(len(sample_ids)) if sample_ids[at : at + len(sample)] == sample)
        return [*sample_ids[:begin], *ids, *sample_ids[begin + len(sample) :]]

    def _tokenize_text(self, text: str) -> list[int]:
        # Some templates write the begin token themselves; it must not be doubled.
        begin = self._tokenizer.bos_token
        bare = not (begin and text.startswith(begin))
        ids: list[int] = self._tokenizer(text, add_special_tokens=bare)["input_ids"]
        return ids

    # Media

    def _check_item(self, item: Encoded) -> None:
        # Positions are counted from the metadata, so a mismatch would make a step of the model fail.
        kind = str(item.meta.get("modality"))
        try:
            rows = self._row_count(item.meta)
        except (KeyError, OverflowError, TypeError, ValueError):
            raise errors.BadRequest(f"the meta data of an item of {kind} cannot be used", param="items") from None
        shape = (rows, self._row_width(kind))
        if tuple(item.embeds.shape) != shape:
            raise errors.BadRequest(
                f"an item of {kind} must have an embedding of shape {shape} by its meta data, "
                f"not {tuple(item.embeds.shape)}",
                param="items",
            )

    def _expand_prompt(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        # A template may move images before videos; items of one modality stay in order.
        waiting: defaultdict[str, list[int]] = defaultdict(list)
        for index, kind in enumerate(prompt.modalities):
            waiting[kind].append(index)
        queues: dict[str, Iterator[int]] = {kind: iter(places) for kind, places in waiting.items()}
        ids: list[int] = []
        starts = [0] * len(media)
        for token in prompt.ids:
            if token in self._placeholders:
                index = next(queues[self._placeholders[token]])
                starts[index] = len(ids)
                ids += self._expand_placeholder(token, media[index])
            else:
                ids.append(token)
        return ids, starts

    def _check_context(self, length: int) -> None:
        # One position must be left for the answer.
        if length >= self.context:
            raise errors.ContextTooLong(f"the prompt has {length} tokens; this model takes {self.context - 1}")


class SequentialThinker(LanguageThinker):
    """A language model whose positions are 0 .. T-1, with or without media."""

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        return torch.arange(ids.shape[1])[None, None], 0

    def _row_count(self, meta: Mapping[str, Any]) -> int:
        rows = operator.index(meta["n_tokens"])
        if rows < 1:
            raise ValueError("an item without rows")
        return rows

    def _convert_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        # Templates of these families read only parts, and would silently drop a plain string.
        converted_message = super()._convert_message(message)
        if isinstance(converted_message["content"], str) and converted_message["role"] != "tool":
            converted_message["content"] = [{"type": "text", "text": converted_message["content"]}]
        return converted_message


def control_tokens(tokenizer: Any, placeholders: Iterable[int]) -> tuple[str, ...]:
    """Return the tokens that users' text must not become.

    They are special tokens, and the ``placeholders`` of media.
    """
    special_tokens = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted(special_tokens | {tokenizer.convert_ids_to_tokens(token) for token in placeholders}))


def _check_items(prompt: TokenizedPrompt, media: Sequence[Encoded]) -> None:
    media_modalities = tuple(str(item.meta.get("modality")) for item in media)
    if media_modalities != prompt.modalities:
        expected_modalities = ", ".join(prompt.modalities) or "none"
        raise errors.BadRequest(
            f"the messages name these media: {expected_modalities}; got: {', '.join(media_modalities) or 'none'}"
        )


def _media_of(chat: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for message in chat:
        if not isinstance(message["content"], str):
            yield from (part["type"] for part in message["content"] if part["type"] != "text")


def _stop_ids(module: Any, tokenizer: Any) -> set[int]:
    end_id = module.generation_config.eos_token_id
    end_ids = end_id if isinstance(end_id, list) else [end_id, tokenizer.eos_token_id]
    return {int(token) for token in end_ids if token is not None}


def _chat_template(checkpoint: Path, tokenizer: Any) -> str:
    """Return the processor's template, which supports media, or "".

    Older checkpoints keep it in chat_template.json.
    """
    plain, old = Path(checkpoint) / "chat_template.jinja", Path(checkpoint) / "chat_template.json"
    if plain.exists():
        return plain.read_text()
    template = json.loads(old.read_text())["chat_template"] if old.exists() else tokenizer.chat_template
    return str(template or "")
