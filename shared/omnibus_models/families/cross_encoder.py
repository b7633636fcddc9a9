"""Cross-encoders: any class of transformers that classifies a pair of texts with one label, its relevance."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from omnibus import errors
from omnibus_models.contract import LoadedComponent, Prepared, no_component
from omnibus_models.families._text_encoder import TokenBatches, load_encoder


class CrossEncoder(LoadedComponent):
    """See ``contract.TextReranker``."""

    def __init__(self, module: Any, checkpoint: Path) -> None:
        super().__init__(module)
        if module.config.num_labels != 1:
            raise errors.Fatal(f"{checkpoint} has {module.config.num_labels} labels; a reranker must have one")
        self._batches = TokenBatches(module, checkpoint)
        self._is_bounded = _has_sigmoid(module.config, checkpoint)

    def prepare_pair(self, query: str, document: str) -> Prepared:
        """Tokenise a query and a document together."""
        features = self._batches.tokenize("documents", query, document)
        return Prepared("text", features, {"n_tokens": len(features["input_ids"])})

    @torch.no_grad()
    def score(self, batch: Sequence[Prepared]) -> list[float]:
        """Run one forward pass; a score is from 0 to 1 unless the checkpoint's activation is the identity."""
        logits = torch.stack(self._batches.run([pair.features for pair in batch], "logits"))[:, 0].float()
        scores: list[float] = (logits.sigmoid() if self._is_bounded else logits).tolist()
        return scores


class CrossEncoderFamily:
    """See ``contract.ModelFamily``."""

    name = "cross_encoder"
    components = ("reranker",)

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> CrossEncoder:
        """Load ``reranker``, the whole model."""
        if component not in self.components:
            raise no_component(self.name, self.components, component)
        module = load_encoder(Path(checkpoint), device, dtype, classifies=True)
        return CrossEncoder(module, Path(checkpoint))

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Any:
        """This family has no language model: always ``NotFound``."""
        raise no_component(self.name, self.components, "thinker")


def _has_sigmoid(config: Any, checkpoint: Path) -> bool:
    """Return True if scores are sigmoids of logits, False if they are logits. Source: vLLM 0.32, as its pooler."""
    if config.problem_type == "regression":
        return False
    own = getattr(config, "sentence_transformers", None) or {}
    name = own.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None)
    kind = str(name or "Sigmoid").rpartition(".")[2]
    if kind not in ("Sigmoid", "Identity"):
        raise errors.Fatal(f"{checkpoint}: unknown activation_fn {name}; it must be Sigmoid or Identity of torch.nn")
    return kind == "Sigmoid"


FAMILY = CrossEncoderFamily()
