"""Multimodal models that do not come apart: the encoder component prepares media, and the thinker is the whole model.

Its own ``forward`` takes tokens and media as its processor writes them, one request at a time.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from omnibus_models import media
from omnibus_models.attention import PromptArguments
from omnibus_models.contract import Encoded, LoadedComponent, PrefillInputs, Prepared
from omnibus_models.families._item_processor import ItemProcessor
from omnibus_models.families._own_encoder import MODALITIES, OwnEncoder
from omnibus_models.families._own_prompt import OwnPrompts
from omnibus_models.families.causal_lm import OwnDecoder

_WIDTH = 1024  # numbers of a row


class MediaPreparer(OwnEncoder):
    """The processor without an encoder, see ``contract.MediaEncoder``. Rows are the numbers that it writes."""

    def __init__(self, processor: ItemProcessor, limits: media.MediaDecodeLimits = media.DEFAULT) -> None:
        LoadedComponent.__init__(self, nn.Module())
        self.modalities = frozenset(processor.placeholders)
        self.processor = processor
        self._limits = limits

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Pass items on one by one."""
        return [self._pass_item(item) for item in batch]

    def _pass_item(self, item: Prepared) -> Encoded:
        features = {name: value for name, value in item.features.items() if value.is_floating_point()}
        numbers = torch.cat([value.flatten().float() for value in features.values()])
        rows = nn.functional.pad(numbers, (0, -len(numbers) % _WIDTH)).reshape(-1, _WIDTH)
        shapes = {name: list(value.shape) for name, value in features.items()}
        form = {"": {"below": False, "columns": [{"width": _WIDTH}], "shapes": shapes}}
        return Encoded(rows, {**item.meta, "n_tokens": len(rows), "form": form})


class WholeDecoder(OwnDecoder):
    """A whole model. Its inputs are tokens [B, T, 1], and what it returns are logits."""

    batches = splits_prompts = False

    def embed(self, ids: Tensor) -> Tensor:
        """See ``contract.Decoder``. Tokens are numbers below 2 ** 24, which float32 has."""
        return ids[..., None].float()

    def _run_layers(self, inputs: Tensor, positions: Tensor, cache: Any, options: Mapping[str, Any]) -> Tensor:
        module: Any = self.module
        ids = inputs[..., 0].long()
        before = 0 if cache is None else cache.get_seq_length()
        call = module.prepare_inputs_for_generation(
            ids,
            past_key_values=cache,
            attention_mask=ids.new_ones(1, before + ids.shape[1]),
            use_cache=True,
            is_first_iteration=before == 0,
            **options,
        )
        logits: Tensor = module(**call).logits
        return logits


class WholePrompts(OwnPrompts):
    """Prompts of a whole model: its tokens, and media as arguments of its ``forward``."""

    def __init__(self, decoder: OwnDecoder, processor: ItemProcessor) -> None:
        self._decoder, self._processor = decoder, processor
        self.device = decoder.device
        self._names = inspect.signature(decoder.module.forward).parameters

    @torch.no_grad()
    def assemble_prefill(
        self, tokens: Sequence[int], starts: Sequence[int], media: Sequence[Encoded], is_media: Tensor
    ) -> PrefillInputs:
        """See ``OwnPrompts``."""
        ids = torch.tensor([tokens], device=self.device)
        by_token = self._values_by_token(tokens, starts, media) | self._find_kinds(ids)
        options = {
            name: value for name, value in (by_token | self._join_features(media)).items() if name in self._names
        }
        inputs = self._decoder.embed(self._processor.model_tokens(ids))[0]
        arguments = PromptArguments(len(tokens), options) if options else None
        return PrefillInputs(inputs, torch.arange(len(tokens))[None], 0, is_media.to(self.device), arguments)

    def _join_features(self, media: Sequence[Encoded]) -> dict[str, Any]:
        """Return the arguments that the processor writes for all ``media``."""
        joined: dict[str, Any] = {}
        for modality in MODALITIES:
            items = [item for item in media if item.meta["modality"] == modality]
            features = [{**item.meta["inputs"], **self._unpack_features(item)} for item in items]
            for name in set.intersection(*({*each} for each in features)) if features else ():
                joined[name] = self._join_inputs([each[name] for each in features], [0] * len(features))
        return joined

    def _unpack_features(self, item: Encoded) -> dict[str, Tensor]:
        shapes = {name: torch.Size(shape) for name, shape in item.meta["form"][""]["shapes"].items()}
        sizes = [shape.numel() for shape in shapes.values()]
        parts = item.embeds.to(self.device, self._decoder.dtype).flatten()[: sum(sizes)].split(sizes)
        return {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
