"""Prompts of recognizers, and the rules for their tokens: those of any class, and those of Whisper."""

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from omnibus import errors
from omnibus_models.contract import LogitRule, RecognitionOptions, TokenSegment

#: Seconds of a step between two timestamps of Whisper.
_STEP_SECONDS = 0.02


class PlainRules:
    """Rules of a class without options: its prompt is one token, and a window is one segment.

    ``generation`` are the checkpoint's. ``extras`` are attributes of the checkpoint's tokenizer and processor.
    """

    no_speech: int | None = None
    detects = False

    def __init__(self, module: Any, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.generation: GenerationConfig = module.generation_config
        self._device = module.device
        config = module.config.get_text_config(decoder=True)
        start = self.generation.decoder_start_token_id
        self.start_token: int = next(
            token for token in (start, getattr(config, "decoder_start_token_id", None), config.bos_token_id, 0)
            if token is not None
        )  # fmt: skip
        self.context_limit: int = self.generation.max_length or 0

    def require_options(self, options: RecognitionOptions) -> None:
        """See ``contract.SpeechDecoder``."""
        self._require_words(options)
        if options.translate:
            raise errors.BadRequest("this model does not translate; transcribe the audio", param="model")
        if options.prompt:
            raise errors.BadRequest("this model takes no prompt; omit it", param="prompt")
        if options.language is None and self._languages:
            raise errors.BadRequest("this model does not detect languages; name the language", param="language")
        if options.language is not None and options.language not in self._languages:
            raise _unknown_language(options.language, self._languages)

    def _require_words(self, options: RecognitionOptions) -> None:
        if options.words and not getattr(self.generation, "alignment_heads", None):
            raise errors.BadRequest(
                "this model gives times of segments, not of words; use segment", param="timestamp_granularities"
            )

    @property
    def _languages(self) -> Mapping[str, int]:
        """The token of each language, by its code."""
        return getattr(self.generation, "text_decoder_lang_to_code_id", None) or {}

    def language_name(self, options: RecognitionOptions, token: int | None = None) -> str:
        """See ``contract.SpeechDecoder``."""
        return LANGUAGES.get(options.language or "", "")

    def detection_prompt(self) -> tuple[Sequence[int], LogitRule]:
        """See ``contract.SpeechDecoder``."""
        raise errors.Fatal("this model detects no languages")

    def window_prompt(self, options: RecognitionOptions, first: bool, language: int | None = None) -> Sequence[int]:
        """See ``contract.SpeechDecoder``."""
        return [self.start_token if options.language is None else self._languages[options.language]]

    def logit_rule(self, options: RecognitionOptions, begin: int) -> LogitRule | None:
        """See ``contract.SpeechDecoder``."""
        return _as_rule(self._suppressing(begin))

    def _suppressing(self, begin: int) -> LogitsProcessorList:
        processors = LogitsProcessorList()
        if self.generation.begin_suppress_tokens:
            processors.append(
                SuppressTokensAtBeginLogitsProcessor(self.generation.begin_suppress_tokens, begin, self._device)
            )
        if self.generation.suppress_tokens:
            processors.append(SuppressTokensLogitsProcessor(self.generation.suppress_tokens, self._device))
        return processors

    def is_text(self, token: int) -> bool:
        """See ``contract.SpeechDecoder``."""
        return True

    def split_segments(self, ids: Sequence[int], seconds: float) -> list[TokenSegment]:
        """See ``contract.SpeechDecoder``."""
        return [TokenSegment(0.0, seconds, tuple(ids))] if ids else []


class WhisperRules(PlainRules):
    """Rules of Whisper (Radford et al. 2022): languages, translation, earlier text, and timestamps."""

    def __init__(self, module: Any, tokenizer: Any) -> None:
        super().__init__(module, tokenizer)
        self._codes = {
            text.strip("<|>"): id for text, id in (getattr(self.generation, "lang_to_id", None) or {}).items()
        }
        self._tasks: Mapping[str, int] = getattr(self.generation, "task_to_id", None) or {}
        self._untimed: int = self.generation.no_timestamps_token_id
        self._end: int = tokenizer.eos_token_id
        self.detects = bool(self._codes)
        self.no_speech = self._untimed - 1
        self._most_prompt: int = module.config.max_target_positions // 2 - 1
        self._previous: int = getattr(self.generation, "prev_sot_token_id", None) or tokenizer.convert_tokens_to_ids(
            "<|startofprev|>"
        )

    def require_options(self, options: RecognitionOptions) -> None:
        """See ``contract.SpeechDecoder``."""
        self._require_words(options)
        if options.translate and "translate" not in self._tasks:
            raise errors.BadRequest("this model knows only English, so it cannot translate", param="model")
        if options.language is not None and options.language not in (self._codes or {"en": 0}):
            raise _unknown_language(options.language, self._codes or {"en": 0})
        self._tokenize_prompt(options)

    def language_name(self, options: RecognitionOptions, token: int | None = None) -> str:
        """See ``contract.SpeechDecoder``."""
        code = next((code for code, id in self._codes.items() if id == token), options.language)
        return LANGUAGES.get(code or "en" * (not self._codes), "")

    def detection_prompt(self) -> tuple[Sequence[int], LogitRule]:
        """See ``contract.SpeechDecoder``."""
        return [self.start_token], partial(_allow_only, torch.tensor([*self._codes.values()], device=self._device))

    def window_prompt(self, options: RecognitionOptions, first: bool, language: int | None = None) -> Sequence[int]:
        """See ``contract.SpeechDecoder``."""
        ids = [*self._tokenize_prompt(options)] if first else []
        ids.append(self.start_token)
        if self._codes:
            ids.append(self._codes[options.language] if language is None and options.language else language or 0)
            ids.append(self._tasks["translate" if options.translate else "transcribe"])
        return ids if options.timestamps else [*ids, self._untimed]

    def logit_rule(self, options: RecognitionOptions, begin: int) -> LogitRule | None:
        """See ``contract.SpeechDecoder``."""
        processors = self._suppressing(begin)
        if options.timestamps:
            processors.append(WhisperTimeStampLogitsProcessor(self.generation, begin_index=begin))
        return _as_rule(processors)

    def is_text(self, token: int) -> bool:
        """See ``contract.SpeechDecoder``."""
        return token < self._end

    def split_segments(self, ids: Sequence[int], seconds: float) -> list[TokenSegment]:
        """See ``contract.SpeechDecoder``. Two timestamps enclose a segment; the last one may lack its end."""
        segments: list[TokenSegment] = []
        begin, tokens = 0.0, list[int]()
        for token in ids:
            if token <= self._untimed:
                tokens += [token] * self.is_text(token)
                continue
            time = min((token - self._untimed - 1) * _STEP_SECONDS, seconds)
            if tokens:
                segments.append(TokenSegment(begin, max(begin, time), tuple(tokens)))
                tokens = []
            begin = time
        return [*segments, TokenSegment(begin, max(begin, seconds), tuple(tokens))] if tokens else segments

    def _tokenize_prompt(self, options: RecognitionOptions) -> Sequence[int]:
        """Return the mark of earlier text and the prompt's last tokens."""
        if not options.prompt.strip():
            return ()
        ids = self.tokenizer(f" {options.prompt.strip()}", add_special_tokens=False)["input_ids"]
        if not all(map(self.is_text, ids)):
            raise errors.BadRequest("the prompt contains a control token of the model; remove it", param="prompt")
        return [self._previous, *ids[-self._most_prompt :]]


def find_rules(module: Any, tokenizer: Any) -> PlainRules:
    """Return the rules of a loaded recognizer."""
    has_timestamps = getattr(module.generation_config, "no_timestamps_token_id", None) is not None
    return (WhisperRules if has_timestamps else PlainRules)(module, tokenizer)


def require_known_prompts(model_type: str) -> None:
    """Raise ``Fatal`` for a class whose processor makes its own prompts.

    Without them, its text is wrong.
    """
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    name = PROCESSOR_MAPPING_NAMES.get(model_type)
    if name is None:
        return
    processor = getattr(transformers, name)
    try:
        is_own = hasattr(processor, "apply_transcription_request")
        is_own = is_own or "language" in signature(processor.__call__).parameters
    except ImportError as error:
        raise errors.Fatal(f"recognizers of type {model_type} need more libraries: {error}") from error
    if is_own:
        raise errors.Fatal(f"recognizers of type {model_type} take prompts of {name}, which are not supported")


def language_code(language: str) -> str:
    """Return the ISO 639 code of a ``language``: its code, with or without a region, or its English name."""
    name = language.strip().lower()
    return TO_LANGUAGE_CODE.get(name) or name.partition("-")[0]


def _unknown_language(language: str, known: Mapping[str, int]) -> errors.BadRequest:
    names = ", ".join(sorted(known)) or "none: omit it"
    return errors.BadRequest(f"this model does not know the language {language!r}; it knows {names}", param="language")


def _as_rule(processors: LogitsProcessorList) -> LogitRule | None:
    return partial(_apply_processors, processors) if processors else None


def _apply_processors(processors: LogitsProcessorList, ids: Sequence[int], logits: Tensor) -> Tensor:
    changed: Tensor = processors(torch.tensor([ids], device=logits.device), logits[None])[0]
    return changed


def _allow_only(allowed: Tensor, ids: Sequence[int], logits: Tensor) -> Tensor:
    changed = torch.full_like(logits, -torch.inf)
    changed[allowed] = logits[allowed]
    return changed
