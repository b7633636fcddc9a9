"""Any language model of transformers that takes only text (``AutoModelForCausalLM``), without code for its class.

The model's own ``forward`` computes everything: masks of windows and chunks from its configuration, logits with their
scales and soft caps. A class is served only after a tiny copy of it has given equal logits in the engine, see
``omnibus_llm.engine.admission``.
"""

import copy
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
)
from transformers.modeling_outputs import BaseModelOutput

from omnibus import errors
from omnibus_models import gguf_checkpoint, loading
from omnibus_models.attention import PromptArguments
from omnibus_models.families import _row_masks
from omnibus_models.families._language_decoder import LanguageDecoder
from omnibus_models.families._text_only import TextFamily, TextThinker

_row_masks.install_row_masks()


class OwnDecoder(LanguageDecoder):
    """A decoder with its own masks, caches and head. ``module`` is a language model of transformers."""

    windows = True
    #: Whether layers take the engine's masks. If not, the model computes those of its layers itself.
    takes_masks = False

    def __init__(self, module: Any, backbone: Any, head: Any, eos: Iterable[int]) -> None:
        super().__init__(module, backbone, head, eos)
        names = inspect.signature(backbone.forward).parameters
        self._takes_positions = "position_ids" in names
        # Newer versions of transformers call it "cache"; some classes ignore an unknown name.
        self._cache_name = next((name for name in ("cache", "cache_params") if name in names), "past_key_values")
        self._layer_table = getattr(backbone, "embed_tokens_per_layer", None)
        layers = DynamicCache(config=backbone.config).layers
        self.recurrent = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)

    def new_cache(self) -> Cache:
        """See ``contract.Decoder``. Batched layers with windows keep all positions, like the slots."""
        cache = DynamicCache(config=self.backbone.config)
        if self.batches:
            cache.layers = [_full_layer(layer) for layer in cache.layers]
        return cache

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """See ``contract.Decoder``. In models with embeddings for each layer (Gemma 3n and 4), they follow the row."""
        rows = super().embed(ids)
        return rows if self._layer_table is None else torch.cat([rows, self._layer_table(ids)], dim=-1)

    def add_layer_rows(self, rows: Tensor, options: dict[str, Any]) -> Tensor:
        """Return ``rows`` [B, T, H] as ``embed`` does.

        The embeddings for each layer are taken from ``options``.
        """
        if self._layer_table is None:
            return rows
        return torch.cat([rows, options.pop("per_layer_inputs").flatten(2)], dim=-1)

    @torch.no_grad()
    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Any) -> Tensor:
        """See ``contract.Decoder``. The model computes the ``mask`` of each of its layers itself, unless it is
        ``PromptArguments`` or the model ``takes_masks``."""
        options: dict[str, Any] = {}
        if isinstance(mask, PromptArguments):
            if inputs.shape[1] > mask.length:  # an earlier attempt's tokens follow the prompt
                prompt, answer = inputs.tensor_split([mask.length], 1)
                before, after = positions.tensor_split([mask.length], 2)
                hidden = self.forward(prompt, before, cache, mask)
                return torch.cat([hidden, self.forward(answer, after, cache, None)], dim=1)
            options |= mask.options
        elif self.takes_masks and mask is not None:
            options["attention_mask"] = mask
        return self._run_layers(inputs, positions, cache, options)

    def _run_layers(self, inputs: Tensor, positions: Tensor, cache: Any, options: dict[str, Any]) -> Tensor:
        options[self._cache_name] = cache
        if self._takes_positions:
            options["position_ids"] = positions if len(positions) > 1 else positions[0]
        if self._layer_table is not None:
            inputs, layer_rows = inputs[..., : self.width], inputs[..., self.width :]
            options["per_layer_inputs"] = layer_rows.unflatten(-1, (self.layers, -1))
        rows: Tensor = self.backbone(inputs_embeds=inputs, use_cache=cache is not None, **options)[0]
        return rows


def _full_layer(layer: Any) -> Any:
    if isinstance(layer, LinearAttentionAndSlidingWindowAttentionLayer):
        return LinearAttentionAndFullAttentionLayer(layer.number_of_states)
    return DynamicLayer() if isinstance(layer, DynamicSlidingWindowLayer) else layer


class CausalLanguageModel(TextThinker, OwnDecoder):
    """A language model with its tokenizer, see ``contract.Thinker``."""

    def _find_backbone(self, module: Any) -> Any:
        return find_backbone(module)

    def _find_head(self, module: Any) -> Any:
        return find_head(module)


def find_backbone(module: Any) -> Any:
    """Return the layers of a language model, without its head."""
    module = find_language_model(module)
    return _find_decoder(module)


def find_language_model(module: Any) -> Any:
    """Return the innermost model of ``module`` with a head."""
    found = _find_decoder(module)
    has_head = found is not module and getattr(found, "lm_head", None) is not None
    return find_language_model(found) if has_head else module


def _find_decoder(module: Any) -> Any:
    parts = (module.get_decoder(), module.base_model, getattr(module, "model", None))
    return next((part for part in parts if part is not module and hasattr(part, "config")), module)


def find_head(module: Any, by_ids: bool = False) -> Any:
    """Return ``OwnHead``, or the output layer if it gives the same logits."""
    own, layer = OwnHead(module, by_ids), module.get_output_embeddings()
    if not isinstance(layer, nn.Linear) or layer.weight.is_meta:
        return own
    rows = torch.randn(2, layer.in_features, generator=torch.Generator().manual_seed(0)).to(layer.weight)
    with torch.no_grad():
        return layer if torch.equal(own(rows), layer(rows)) else own


class OwnHead:
    """Logits as the model's own ``forward`` computes them from hidden rows: with scales, biases and soft caps.

    ``by_ids`` calls it with tokens: a model with encoders may look for placeholders among rows. Raises ``Fatal`` if the
    decoder is not a part of the model that can be replaced.
    """

    def __init__(self, module: Any, by_ids: bool = False) -> None:
        module = find_language_model(module)  # the one around it may require media
        decoder = find_backbone(module)
        self._given = _GivenRows(decoder)
        self._model = replace_part(module, decoder, self._given)
        self._by_ids = by_ids

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return logits [B, V] of ``hidden`` [B, H']."""
        rows = self._given.rows = hidden[:, None]
        tokens = rows.new_zeros(rows.shape[:2], dtype=torch.long)
        inputs = {"input_ids": tokens} if self._by_ids else {"inputs_embeds": rows}
        logits: Tensor = self._model(**inputs, use_cache=False).logits
        return logits[:, -1]


def replace_part(module: Any, part: Any, other: nn.Module) -> Any:
    """Return a second object of ``module`` that shares all its submodules but ``part``, which is ``other``.

    Raises ``Fatal`` if ``part`` is not a submodule.
    """
    path = next((name for name, child in module.named_modules() if child is part), "")
    if not path:
        raise errors.Fatal(f"{type(module).__name__} has no decoder apart from its head; it cannot be served")
    return _with_module(module, path.split("."), other)


def _with_module(module: nn.Module, path: Sequence[str], other: nn.Module) -> nn.Module:
    """Return a second object of ``module`` that shares everything but the submodule at ``path``, which is ``other``."""
    name, *rest = path
    changed = copy.copy(module)
    changed._modules = {
        **module._modules,
        name: _with_module(module.get_submodule(name), rest, other) if rest else other,
    }
    return changed


class _GivenRows(nn.Module):
    """Returns given rows in the place of ``decoder``, whose attributes heads may read."""

    rows: Tensor

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.__dict__["decoder"] = decoder  # not as a submodule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["decoder"], name)

    def forward(self, *_: Any, **__: Any) -> "_DecoderOutput":
        return _DecoderOutput(self.rows)


@dataclass
class _DecoderOutput(BaseModelOutput):
    """The output of a decoder, without anything but its last rows."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class CausalFamily(TextFamily):
    """See ``contract.ModelFamily``."""

    def __init__(self) -> None:
        super().__init__("causal_lm", "AutoModelForCausalLM")

    def _load_thinker(self, checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> CausalLanguageModel:
        cls = find_class(checkpoint)
        kernels = {"attn_implementation": loading.find_attention(cls)}
        module = loading.load_model(cls, checkpoint, drop=drop, device=device, dtype=dtype, **kernels)
        return CausalLanguageModel(module, checkpoint)


def find_class(checkpoint: Path) -> Any:
    """Return the class of the language model in ``checkpoint``. Raises ``NotFound`` if transformers has none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    config = gguf_checkpoint.load_config(checkpoint)
    try:
        cls = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise errors.NotFound(f"transformers has no language model for {config.model_type!r}") from None
    return cls[0] if isinstance(cls, tuple) else cls


FAMILY = CausalFamily()
