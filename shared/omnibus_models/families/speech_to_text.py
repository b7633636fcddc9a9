"""Speech recognizers: any encoder-decoder class of ``AutoModelForSpeechSeq2Seq``, without code for single classes.

The model's own ``forward`` computes everything, once without its decoder and once without its encoder. A class is
served only after a tiny copy of it has given equal logits in the engine, see ``omnibus_llm.engine.admission``.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoFeatureExtractor, AutoModelForSpeechSeq2Seq, AutoTokenizer
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.attention import Crossing
from omnibus_models.contract import (
    LoadedComponent,
    LogitRule,
    PrefillInputs,
    RecognitionOptions,
    TimedWord,
    TokenSegment,
    no_component,
)
from omnibus_models.families import _row_masks
from omnibus_models.families._recognition_rules import PlainRules, find_rules, language_code, require_known_prompts
from omnibus_models.families._speech_encoder import SpeechWindowEncoder
from omnibus_models.families._word_times import AnsweredWindow, EncodedWindow, align_words

_row_masks.install_row_masks()

#: Longest recording. All of its rows are in memory at once.
_MAX_SECONDS = 1800.0


@dataclass(frozen=True)
class WindowAttention:
    """Attention to all ``rows`` [R, H] of a window, see ``attention.Attention``."""

    rows: Tensor

    spans = ()

    @property
    def answer_rows(self) -> Tensor:
        return torch.ones(len(self.rows), dtype=torch.bool, device=self.rows.device)

    def mask(self, begin: int, end: int) -> Crossing:
        visible = torch.ones(1, 1, end - begin, len(self.rows), dtype=torch.bool, device=self.rows.device)
        return Crossing(None, visible, visible[:, 0, :, 0], self.rows[None] if begin == 0 else None)


class PairedDecoder(LoadedComponent):
    """A decoder with pairs of attention, see ``contract.SpeechDecoder``.

    ``rows_width`` is H of the encoder's rows.
    """

    axes, pairs, recurrent, splits_prompts, batches = 1, True, False, False, True

    def __init__(self, module: Any, eos: Sequence[int]) -> None:
        super().__init__(module)
        self._model = module
        self.eos = frozenset(eos)
        self.device, self.dtype = module.device, module.dtype
        config = module.config.get_text_config(decoder=True)
        limits = (getattr(config, name, None) for name in ("max_target_positions", "max_position_embeddings"))
        self.context = next((limit for limit in limits if limit), _MAX_TOKENS)
        self.rows_width = _find_rows_width(module.config)
        self._takes_positions = "decoder_position_ids" in inspect.signature(module.forward).parameters
        self.vocabulary, self.layers = self._probe_shapes()

    @torch.no_grad()
    def _probe_shapes(self) -> tuple[int, int]:
        """Return the size of the vocabulary and the number of layers."""
        cache = self.new_cache()
        place = torch.zeros(1, 1, 1, dtype=torch.long, device=self.device)
        logits = self.forward(self.embed(place[0]), place, cache, None)
        return logits.shape[-1], len(cache.self_attention_cache.layers)

    def new_cache(self) -> EncoderDecoderCache:
        """See ``contract.Decoder``."""
        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    def embed(self, ids: Tensor) -> Tensor:
        """See ``contract.Decoder``: the tokens themselves."""
        return ids[..., None].float()

    @torch.no_grad()
    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Any) -> Tensor:
        """See ``contract.Decoder``. Without rows in ``mask`` or the cache there is one row of zeros."""
        ids = inputs[..., 0].long()
        pair = cache if isinstance(cache, EncoderDecoderCache) else _pair_slots(cache, self.layers)
        kept = pair.cross_attention_cache.layers
        rows = mask.rows if isinstance(mask, Crossing) else None
        if rows is None:
            count = kept[0].keys.shape[-2] if kept else 1
            rows = torch.zeros(1, 1, 1, device=self.device, dtype=self.dtype).expand(len(ids), count, self.rows_width)
        options = {"decoder_position_ids": positions[0]} if self._takes_positions else {}
        logits: Tensor = self._model(
            encoder_outputs=EncodedWindow(last_hidden_state=rows.to(self.dtype)),
            decoder_input_ids=ids,
            past_key_values=pair,
            use_cache=True,
            **options,
        ).logits
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``contract.Decoder``."""
        return hidden.float()

    def start(self, ids: Sequence[int], rows: Tensor) -> PrefillInputs:
        """See ``contract.SpeechDecoder``."""
        tokens = torch.tensor(ids, device=self.device)
        places = torch.arange(len(ids), device=self.device)[None]
        from_encoder = torch.zeros(len(ids), dtype=torch.bool, device=self.device)
        return PrefillInputs(self.embed(tokens), places, 0, from_encoder, WindowAttention(rows))


_MAX_TOKENS = 448  # of a window, if the model has no limit


class _PairedSlots(EncoderDecoderCache):
    """The library's pair of caches, for rows of different lengths."""

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """Return the place of each row's new position, [B]."""
        return self.self_attention_cache.get_query_offset(layer_idx)


def _pair_slots(cache: Any, layers: int) -> EncoderDecoderCache:
    """Return the library's pair of caches for slots.

    The layers of cross-attention follow those of self-attention.
    """
    crossed = Cache(layers=[])
    pair = _PairedSlots(cache, crossed)
    crossed.layers, pair.is_updated = cache.layers[layers:], dict.fromkeys(range(layers), True)
    return pair


def _find_rows_width(config: Any) -> int:
    encoder = getattr(config, "encoder_config", config)
    width: int = getattr(encoder, "hidden_size", None) or encoder.d_model
    return width


class RecognizerDecoder(PairedDecoder):
    """A recognizer's decoder with its tokenizer and the rules of its class."""

    def __init__(self, module: Any, checkpoint: Path) -> None:
        eos = module.generation_config.eos_token_id
        super().__init__(module, [eos] if isinstance(eos, int) else eos or ())
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
        self._rules: PlainRules = find_rules(module, self.tokenizer)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        # Texts of byte-level tokens contain the spaces before words.
        self.joint = "" if type(getattr(backend, "decoder", None)).__name__ == "ByteLevel" else " "
        self.start_token = self._rules.start_token
        self.detects, self.no_speech = self._rules.detects, self._rules.no_speech

    def require_options(self, options: RecognitionOptions) -> None:
        """See ``contract.SpeechDecoder``."""
        self._rules.require_options(_with_code(options))

    def language_name(self, options: RecognitionOptions, token: int | None = None) -> str:
        """See ``contract.SpeechDecoder``."""
        return self._rules.language_name(_with_code(options), token)

    def detection_prompt(self) -> tuple[Sequence[int], LogitRule]:
        """See ``contract.SpeechDecoder``."""
        return self._rules.detection_prompt()

    def window_prompt(self, options: RecognitionOptions, first: bool, language: int | None = None) -> Sequence[int]:
        """See ``contract.SpeechDecoder``."""
        return self._rules.window_prompt(_with_code(options), first, language)

    def logit_rule(self, options: RecognitionOptions, begin: int) -> LogitRule | None:
        """See ``contract.SpeechDecoder``."""
        return self._rules.logit_rule(options, begin)

    def align_words(
        self, prompt: Sequence[int], ids: Sequence[int], rows: Tensor, seconds: float, language: str
    ) -> list[TimedWord]:
        """See ``contract.SpeechDecoder``."""
        return align_words(
            self.module, self.tokenizer, self._rules, AnsweredWindow(prompt, ids, rows, seconds, language)
        )

    def is_text(self, token: int) -> bool:
        """See ``contract.SpeechDecoder``."""
        return self._rules.is_text(token)

    def split_segments(self, ids: Sequence[int], seconds: float) -> list[TokenSegment]:
        """See ``contract.SpeechDecoder``."""
        return self._rules.split_segments(ids, seconds)

    def decode_ids(self, ids: Sequence[int]) -> str:
        """See ``contract.SpeechDecoder``."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


def _with_code(options: RecognitionOptions) -> RecognitionOptions:
    return options if options.language is None else replace(options, language=language_code(options.language))


class RecognizerFamily:
    """See ``contract.ModelFamily``."""

    name = "speech_to_text"
    components = ("audio", "transcriber")

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load ``audio``, the encoder, or ``transcriber``, all other parts."""
        if component not in self.components:
            raise no_component(self.name, self.components, component)
        cls, config = _find_class(checkpoint)
        require_known_prompts(config.model_type)
        with torch.device("meta"):
            skeleton = cls(config).eval()
        paths = _encoder_paths(skeleton)
        module: Any = loading.load_model(
            cls,
            checkpoint,
            drop=paths.others if component == "audio" else [paths.encoder],
            device=device,
            dtype=dtype,
            attn_implementation=loading.find_attention(cls),
        )
        if component == "transcriber":
            return RecognizerDecoder(module, checkpoint)
        try:
            features = AutoFeatureExtractor.from_pretrained(checkpoint, local_files_only=True)
        except (ImportError, OSError, ValueError) as error:
            raise errors.Fatal(f"the feature extractor of {checkpoint} cannot be loaded: {error}") from error
        return SpeechWindowEncoder(
            module, skeleton.get_encoder(), features, media.MediaDecodeLimits(seconds=_MAX_SECONDS)
        )

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Any:
        """This family has no language model: always ``NotFound``."""
        raise no_component(self.name, self.components, "thinker")


@dataclass(frozen=True)
class _EncoderPaths:
    """Paths of the encoder, and of modules outside of it."""

    encoder: str
    others: Sequence[str]


def _encoder_paths(module: Any) -> _EncoderPaths:
    encoder = module.get_encoder()
    path = next(name for name, child in module.named_modules() if child is encoder)
    parents = ["", *(path[:index] for index, letter in enumerate(path) if letter == ".")]
    names = [
        f"{parent}.{name}".lstrip(".")
        for parent in parents
        for name, _ in module.get_submodule(parent).named_children()
    ]
    return _EncoderPaths(path, [name for name in names if name != path and not path.startswith(f"{name}.")])


def _find_class(checkpoint: Path) -> tuple[Any, Any]:
    try:
        config = AutoConfig.from_pretrained(checkpoint, local_files_only=True)
        cls = AutoModelForSpeechSeq2Seq._model_mapping[type(config)]
    except (ImportError, KeyError, OSError, ValueError) as error:
        raise errors.Fatal(f"transformers has no class of speech recognizers for {checkpoint}: {error}") from error
    return cls, config


FAMILY = RecognizerFamily()
