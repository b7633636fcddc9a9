"""Sentence encoders: any text encoder of transformers, pooled as the files of sentence-transformers say.

Those in GGUF files are pooled as the file says, and run on llama.cpp.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus.checkpoints.gguf_header import is_gguf, read_gguf_header, require_embedder
from omnibus_models.contract import LoadedComponent, Prepared, TextEmbedder, no_component
from omnibus_models.families._gguf_embedder import GgufEmbedder
from omnibus_models.families._sentence_modules import SentenceModules, read_modules
from omnibus_models.families._text_encoder import TokenBatches, load_encoder


class SentenceEmbedder(LoadedComponent):
    """See ``contract.TextEmbedder``."""

    def __init__(self, module: Any, modules: SentenceModules) -> None:
        super().__init__(nn.ModuleList([module, modules.steps.to(module.device).eval().requires_grad_(False)]))
        self._modules = modules
        self._batches = TokenBatches(module, modules.transformer, modules.lowercase, modules.max_tokens)
        self._prompt_tokens = {name: self._count_tokens(text) for name, text in modules.prompts.items() if text}

    def prepare_text(self, text: str | Sequence[int], prompt_name: str | None = None) -> Prepared:
        """Tokenise a text with its prompt."""
        name = self._choose_prompt(text, prompt_name)
        if isinstance(text, str):
            features = self._batches.tokenize("text", self._modules.prompts.get(name, "") + text)
        else:
            features = self._batches.check_ids(text, "text")
        count, prompt_tokens = len(features["input_ids"]), self._prompt_tokens.get(name, 0)
        return Prepared("text", features, {"n_tokens": count, "prompt_tokens": min(prompt_tokens, count - 1)})

    @torch.no_grad()
    def embed(self, batch: Sequence[Prepared]) -> list[Tensor]:
        """Run one forward pass, and pool the rows of each text."""
        hidden = self._batches.run([text.features for text in batch], "last_hidden_state")
        return [
            self._modules.pool(rows[: text.meta["n_tokens"]], text.meta["prompt_tokens"])
            for rows, text in zip(hidden, batch, strict=True)
        ]

    def _choose_prompt(self, text: str | Sequence[int], prompt_name: str | None) -> str:
        """Return the name of the prompt, or "" without one. Tokens have their prompt already."""
        if prompt_name is None:
            return (self._modules.default_prompt or "") if isinstance(text, str) else ""
        if not isinstance(text, str):
            raise errors.BadRequest("prompt_name needs texts, not tokens", param="prompt_name")
        if prompt_name not in self._modules.prompts:
            names = ", ".join(self._modules.prompts) or "none"
            raise errors.BadRequest(f"unknown prompt {prompt_name!r}; this model has: {names}", param="prompt_name")
        return prompt_name

    def _count_tokens(self, prompt: str) -> int:
        ids = self._batches.tokenize("prompts", prompt)["input_ids"].tolist()
        return len(ids) - (ids[-1] in self._batches.tokenizer.all_special_ids)


class SentenceFamily:
    """See ``contract.ModelFamily``."""

    name = "sentence_encoder"
    components = ("embedder",)

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> TextEmbedder:
        """Load ``embedder``, the whole model. Weights in GGUF stay as they are, and use torch's number of threads."""
        if component not in self.components:
            raise no_component(self.name, self.components, component)
        if is_gguf(checkpoint):
            require_embedder(read_gguf_header(checkpoint))
            if device != "cpu":
                raise errors.BadRequest(f"embedders in GGUF run on the CPU, not on {device!r}: set the device to cpu")
            return GgufEmbedder(checkpoint, torch.get_num_threads())
        modules = read_modules(Path(checkpoint))
        return SentenceEmbedder(load_encoder(modules.transformer, device, dtype), modules)

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Any:
        """This family has no language model: always ``NotFound``."""
        raise no_component(self.name, self.components, "thinker")


FAMILY = SentenceFamily()
