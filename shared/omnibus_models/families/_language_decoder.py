"""Base of the language models of all families: a decoder stack without state."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus import errors
from omnibus_models.adapters import Adapters
from omnibus_models.contract import LoadedComponent

#: Names of the longest sequence in configurations.
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_UNLIMITED_CONTEXT = 32768


class LanguageDecoder(LoadedComponent):
    """A decoder stack: backbone plus head, see ``contract.Decoder``.

    Every layer attends to all positions before. Families with ``windows`` handle layers that do not.
    """

    axes = 1
    windows = False
    batches = True
    recurrent = False
    splits_prompts = True
    adapters: Adapters | None = None

    def __init__(self, module: Any, backbone: Any, head: Any, eos: Iterable[int]) -> None:
        super().__init__(module)
        config = backbone.config
        if not self.windows:
            _require_full_attention(config)
        table = module.get_input_embeddings().weight
        self.backbone, self._head = backbone, head
        self.eos = frozenset(eos)
        self.layers: int = config.num_hidden_layers
        self.context: int = _context_length(config)
        self.vocabulary: int = config.vocab_size
        self.width: int = table.shape[1]
        self.device: torch.device = table.device
        self.dtype: torch.dtype = table.dtype
        # Ids that ``generation_config.json`` forbids in all answers, as ``generate`` applies them.
        forbidden = getattr(getattr(module, "generation_config", None), "suppress_tokens", None) or ()
        self._forbidden = torch.tensor(forbidden, dtype=torch.long, device=table.device)

    def new_cache(self) -> Any:
        """See ``contract.Decoder``."""
        return DynamicCache()

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Return token embeddings: [...] int64 to [..., H]."""
        module: Any = self.module
        embeddings: Tensor = module.get_input_embeddings()(ids)
        return embeddings

    @torch.no_grad()
    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Any) -> Tensor:
        """Run [B, T, H] at ``positions`` [axes, B, T]; return normalised hidden [B, T, H']."""
        # The library passes a mask of four axes to the layers unchanged.
        out = self.backbone(
            inputs_embeds=inputs,
            position_ids=positions if self.axes > 1 else positions[0],
            attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [B, V] of [B, H']."""
        scores: Tensor = self._head(hidden).float()
        return scores.index_fill(1, self._forbidden, -torch.inf) if len(self._forbidden) else scores


def _context_length(config: Any) -> int:
    """Return the most positions of a model; recurrent models and those with ALiBi have no limit of their own."""
    lengths = (getattr(config, name, None) for name in _CONTEXT_NAMES)
    return next((length for length in lengths if isinstance(length, int) and length > 0), _UNLIMITED_CONTEXT)


def _require_full_attention(config: Any) -> None:
    # Some families specify the attention of each layer, others a window for all.
    default_types = ["sliding_attention"] if getattr(config, "sliding_window", None) else ["full_attention"]
    kinds = sorted(set(getattr(config, "layer_types", None) or default_types))
    if kinds != ["full_attention"]:
        raise errors.Fatal(f"layers with {', '.join(kinds)} cannot be served; only full attention is supported")
