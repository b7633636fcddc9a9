"""Text encoders of any class of transformers: tokenised inputs and padded batches."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models import loading
from omnibus_models.families._lengths import Lengths

Features = Mapping[str, Tensor]

#: Tokens of a row, and as many of padding, that show whether a model ignores padding.
_PROBE_TOKENS = 8


def load_encoder(checkpoint: Path, device: str, dtype: str, *, classifies: bool = False) -> Any:
    """Load the text encoder that transformers' automatic classes find.

    It has its head if it ``classifies``. Otherwise the pooler is left out: many checkpoints have no weights for it, and
    vectors do not depend on it. Raises ``Fatal``.
    """
    cls = _find_class(checkpoint, classifies)
    module: Any = loading.load_model(
        cls,
        checkpoint,
        drop=() if classifies else ("pooler",),
        device=device,
        dtype=dtype,
        attn_implementation=loading.find_attention(cls),
    )
    module.config.use_cache = False
    if getattr(module, "pooler", module) is None:  # some classes call it without a look
        module.pooler = nn.Identity()
    return module


def _find_class(checkpoint: Path, classifies: bool) -> Any:
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoModelForTextEncoding
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(checkpoint, local_files_only=True)
        # Of models with an encoder and a decoder, such as T5, this is the encoder.
        encoders = AutoModelForTextEncoding if config.model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES else AutoModel
        with torch.device("meta"):
            return type((AutoModelForSequenceClassification if classifies else encoders).from_config(config))
    except (ImportError, KeyError, OSError, ValueError) as error:
        raise errors.Fatal(f"transformers has no class of text encoders for {checkpoint}: {error}") from error


class TokenBatches:
    """Tokenises texts for ``module`` and runs it on batches of any lengths.

    ``lowercase`` and ``max_tokens`` replace the tokenizer's own. ``context`` is the most tokens of one input.
    """

    def __init__(self, module: Any, checkpoint: Path, lowercase: bool = False, max_tokens: int | None = None) -> None:
        from transformers import AutoTokenizer

        self.module = module
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
        if lowercase:
            _lower_texts(self.tokenizer.backend_tokenizer)
        self.context: int = min(max_tokens or self.tokenizer.model_max_length, _count_positions(module))
        self._lengths = Lengths(self.tokenizer)
        self._accepted = inspect.signature(module.forward).parameters.keys()
        self._masks = "attention_mask" in self._accepted
        pad = getattr(module.config, "pad_token_id", None)
        self._pad = next((id for id in (pad, self.tokenizer.pad_token_id) if id is not None), 0)
        module.config.pad_token_id = self._pad
        self._padding_ignored: bool | None = None

    def tokenize(self, param: str, *texts: str) -> Features:
        """Return the inputs [T] of the model for a text or a pair.

        The tokenizer adds its marks. Special tokens in ``texts`` are plain text. Raises ``ContextTooLong``, naming
        ``param``.
        """
        self._lengths.require_context(texts, self.context, param)
        encoding = self.tokenizer(*texts, split_special_tokens=True)
        features = {name: torch.tensor(ids) for name, ids in encoding.items() if name in self._accepted}
        features.pop("attention_mask", None)
        return self._check_length(features, param)

    def check_ids(self, ids: Sequence[int], param: str) -> Features:
        """Return the inputs for a text that the client tokenised. Raises ``BadRequest`` and ``ContextTooLong``."""
        vocabulary = self.module.get_input_embeddings().num_embeddings
        if any(not 0 <= id < vocabulary for id in ids):
            raise errors.BadRequest(
                f"tokens of this model are from 0 to {vocabulary - 1}: send texts, or tokens from its tokenizer",
                param=param,
            )
        names = [name for name in self.tokenizer.model_input_names if name in self._accepted]
        zeros = {name: torch.zeros(len(ids), dtype=torch.int64) for name in names if name != "attention_mask"}
        return self._check_length({**zeros, "input_ids": torch.tensor(ids, dtype=torch.int64)}, param)

    def run(self, batch: Sequence[Features], output: str) -> list[Tensor]:
        """Return the row of ``output`` of the model for each of ``batch``. Padding follows a row."""
        if len(batch) == 1 or self._ignores_padding(batch[0], output):
            return self._run_padded(batch, output)
        return [row for features in batch for row in self._run_padded([features], output)]

    def _ignores_padding(self, features: Features, output: str) -> bool:
        """Try once whether padding changes a row: convolutions and Fourier transforms read it despite its mask."""
        if self._padding_ignored is None:
            few = {name: value[:_PROBE_TOKENS] for name, value in features.items()}
            [alone] = self._run_padded([few], output)
            [longer] = self._run_padded([few], output, more=_PROBE_TOKENS)
            bound = (1e-4 if alone.dtype == torch.float32 else 0.05) * float(alone.abs().max())
            self._padding_ignored = bool((alone - longer[: len(alone)]).abs().max() <= bound)
        return self._padding_ignored

    def _run_padded(self, batch: Sequence[Features], output: str, more: int = 0) -> list[Tensor]:
        lengths = torch.tensor([len(features["input_ids"]) for features in batch])
        inputs = {
            name: nn.utils.rnn.pad_sequence(
                [nn.functional.pad(features[name], (0, more), value=pad) for features in batch],
                batch_first=True,
                padding_value=pad,
            )
            for name in batch[0]
            for pad in [self._pad if name == "input_ids" else 0]
        }
        if self._masks:
            inputs["attention_mask"] = (torch.arange(int(lengths.max()) + more) < lengths[:, None]).long()
        inputs = {name: value.to(self.module.device) for name, value in inputs.items()}
        return list(getattr(self.module(**inputs), output))

    def _check_length(self, features: Features, param: str) -> Features:
        count = len(features["input_ids"])
        if not count:
            raise errors.BadRequest("the text has no tokens", param=param)
        if count > self.context:
            raise errors.ContextTooLong(f"the text has {count} tokens; this model takes {self.context}", param=param)
        return features


def _lower_texts(backend: Any) -> None:
    from tokenizers import normalizers

    own = [backend.normalizer] if backend.normalizer is not None else []
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])


def _count_positions(module: Any) -> int:
    """Return the most tokens for which the model has positions."""
    positions = getattr(module.config, "max_position_embeddings", None) or -1
    for name, table in module.named_modules():
        # RoBERTa and its relatives count positions from after the padding's.
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None:
            positions = table.num_embeddings - table.padding_idx - 1
    return positions if positions > 0 else 1 << 30
