"""Sentence encoders: any text encoder of transformers, pooled as the files of sentence-transformers say.

Those in GGUF files are pooled as the file says, and run on llama.cpp.

Embedders in GGUF files: llama.cpp tokenises texts and computes one vector for each.

Files of sentence-transformers: prompts, limits, and the steps from hidden states to the vector of a text.

Source: sentence-transformers 6.2, ``sentence_transformer/modules`` and ``base/modules``.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus.checkpoints.gguf_header import is_gguf, read_gguf_header, require_embedder
from omnibus_models.contract import LoadedComponent, Prepared, TextEmbedder, no_component
from omnibus_models.families._lengths import Lengths
from omnibus_models.families._text_encoder import TokenBatches, load_encoder
from omnibus_models.llama_cpp.context import GgufModel, point_batch

#: Tokens and texts of one call of the library. A longer text has a call of its own.
BATCH_TOKENS, BATCH_TEXTS = 2048, 64


class GgufEmbedder:
    """See ``contract.TextEmbedder``. Vectors have length 1, and are pooled as the metadata of ``file`` says.

    ``threads`` compute them. Raises ``Fatal`` for a file that llama.cpp does not load.
    """

    def __init__(self, file: Path, threads: int) -> None:
        self._gguf = GgufModel(file)
        self._lengths = Lengths(_NativeTokenizer(self._gguf))
        self._passes = _PooledPasses(self._gguf, threads)

    @property
    def parameters(self) -> int:
        return self._gguf.parameters

    def prepare_text(self, text: str | Sequence[int], prompt_name: str | None = None) -> Prepared:
        """Tokenise a text. Special tokens in it are plain text."""
        if prompt_name is not None:
            raise errors.BadRequest(
                "GGUF files have no prompts: leave out prompt_name, and write the prompt into the text",
                param="prompt_name",
            )
        context = self._gguf.context
        if isinstance(text, str):
            self._lengths.require_context([text], context, "text")
            ids = self._gguf.tokenize_text(text, marked=True, special=False)
        else:
            ids = self._check_ids(text)
        if not ids:
            raise errors.BadRequest("the text has no tokens", param="text")
        if len(ids) > context:
            raise errors.ContextTooLong(f"the text has {len(ids)} tokens; this model takes {context}", param="text")
        return Prepared("text", {"ids": torch.tensor(ids)}, {"n_tokens": len(ids)})

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        vocabulary = self._gguf.vocabulary
        if any(not 0 <= id < vocabulary for id in ids):
            raise errors.BadRequest(
                f"tokens of this model are from 0 to {vocabulary - 1}: send texts, or tokens from its tokenizer",
                param="text",
            )
        return list(ids)

    def embed(self, batch: Sequence[Prepared]) -> list[Tensor]:
        """Compute the texts in as few calls as possible."""
        texts = [text.features["ids"].tolist() for text in batch]
        vectors = [self._passes.embed_texts(group) for group in _group_texts(texts)]
        return list(nn.functional.normalize(torch.from_numpy(np.concatenate(vectors)), dim=-1))


class _PooledPasses:
    """Passes over several texts, for one thread at a time. Memory grows with the longest text so far."""

    def __init__(self, model: GgufModel, threads: int) -> None:
        self._model, self._library, self._threads = model, model.library, threads
        self._width: int = self._library.llama_model_n_embd_out(model.handle)
        self._tokens = 0
        self._handle: int | None = None
        self._grow(min(BATCH_TOKENS, model.context))

    def embed_texts(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the pooled vectors of ``texts``: float32 [texts, width]. Raises ``Fatal`` if the library fails."""
        lengths = [len(ids) for ids in texts]
        count = sum(lengths)
        if count > self._tokens:
            self._grow(count)
        self._columns[0, :count] = np.concatenate(texts)
        self._columns[1, :count] = np.concatenate([np.arange(length) for length in lengths])
        self._columns[2, :count] = np.repeat(np.arange(len(texts)), lengths)
        self._batch.n_tokens = count
        if self._memory:
            self._library.llama_memory_clear(self._memory, False)
        result = (self._library.llama_decode if self._memory else self._library.llama_encode)(self._handle, self._batch)
        if result:
            raise errors.Fatal(f"llama.cpp cannot embed these texts: error {result}")
        return np.stack([self._copy_vector(number) for number in range(len(texts))])

    def _copy_vector(self, number: int) -> np.ndarray:
        pointer = self._library.llama_get_embeddings_seq(self._handle, number)
        if not pointer:
            raise errors.Fatal("llama.cpp has no vector of this text: the file's pooling_type is not supported")
        return np.ctypeslib.as_array(pointer, (self._width,)).copy()

    def _grow(self, tokens: int) -> None:
        """Allocate memory for passes of ``tokens``: each text must be in one of the library's own batches."""
        self._free()
        tokens = max(tokens, min(2 * self._tokens, self._model.context))
        self._tokens = -(-tokens // BATCH_TEXTS) * BATCH_TEXTS  # the library ends its process at other numbers
        params: Any = self._library.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = min(self._tokens, self._model.context), BATCH_TEXTS, True
        params.n_batch = params.n_ubatch = self._tokens
        params.n_threads = params.n_threads_batch = self._threads or os.cpu_count() or 1
        params.embeddings = True
        self._handle = self._library.llama_init_from_model(self._model.handle, params)
        if not self._handle:
            raise errors.Fatal(f"llama.cpp has no memory for a text of {self._tokens} tokens; send shorter ones")
        self._memory = self._library.llama_get_memory(self._handle)
        self._columns = np.zeros((3, self._tokens), np.int32)  # tokens, positions, texts
        self._flags = np.ones(self._tokens, np.int8)
        self._batch = point_batch(self._columns, self._flags)

    def _free(self) -> None:
        if self._handle:
            self._library.llama_free(self._handle)
        self._handle = None

    def __del__(self) -> None:
        self._free()


class _NativeTokenizer:
    """Tokenizer of a GGUF file, as ``Lengths`` reads one."""

    def __init__(self, model: GgufModel) -> None:
        self._model = model

    def get_vocab(self) -> Iterator[str]:
        return self._model.token_texts()

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": self._model.tokenize_text(text, add_special_tokens, special=False)}


def _group_texts(texts: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Yield consecutive ``texts`` that fit into one call."""
    group: list[list[int]] = []
    for ids in texts:
        if group and (len(group) == BATCH_TEXTS or sum(map(len, group)) + len(ids) > BATCH_TOKENS):
            yield group
            group = []
        group.append(ids)
    if group:
        yield group


MODULES = "modules.json"
_PACKAGE = "sentence_transformers."
_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _weighted_mean(rows: Tensor, prompt_rows: int) -> Tensor:
    weights = torch.arange(prompt_rows + 1, prompt_rows + 1 + len(rows), device=rows.device, dtype=rows.dtype)[:, None]
    return (rows * weights).sum(0) / weights.sum()


#: From rows [T, H], after ``prompt_rows`` rows of a prompt, to [H].
_POOLINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "cls": lambda rows, prompt_rows: rows[0],
    "max": lambda rows, prompt_rows: rows.amax(0),
    "mean": lambda rows, prompt_rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows, prompt_rows: rows.sum(0) / len(rows) ** 0.5,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda rows, prompt_rows: rows[-1],
}


@dataclass(frozen=True)
class SentenceModules:
    """The files of one checkpoint.

    ``transformer`` is the directory of the language model. ``steps`` map the pooled vector to the final one.
    """

    transformer: Path
    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    steps: nn.Sequential = field(default_factory=lambda: nn.Sequential(Normalize()))
    max_tokens: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def pool(self, rows: Tensor, prompt_tokens: int) -> Tensor:
        """Return the float32 vector of hidden states [T, H], which begin with a prompt."""
        prompt_rows = 0 if self.include_prompt else prompt_tokens
        rows = rows[prompt_rows:].float()
        vector: Tensor = self.steps(torch.cat([_POOLINGS[mode](rows, prompt_rows) for mode in self.modes]))
        return vector


class Normalize(nn.Module):
    """Scales a vector to length 1."""

    def forward(self, vector: Tensor) -> Tensor:
        return nn.functional.normalize(vector, dim=-1)


def read_modules(checkpoint: Path) -> SentenceModules:
    """Read the files of ``checkpoint``. Without a ``modules.json``, a vector is the normalised mean.

    Raises ``Fatal`` for a module, pooling or activation that is not served, and for files that cannot be read.
    """
    entries = _read_json(checkpoint / MODULES, [])
    if not entries:
        return SentenceModules(checkpoint)
    kinds = [_module_kind(entry) for entry in entries]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise _unknown_module(checkpoint, entries[0 if kinds[0] != "Transformer" else min(1, len(entries) - 1)])
    transformer, pooling = (checkpoint / str(entry["path"]) for entry in entries[:2])
    modes, include_prompt = _read_pooling(pooling)
    text: Any = next((_read_json(path) for path in sorted(transformer.glob("sentence_*_config.json"))), {})
    prompts = _read_json(checkpoint / "config_sentence_transformers.json", {})
    return SentenceModules(
        transformer,
        modes,
        include_prompt,
        nn.Sequential(*_read_steps(checkpoint, entries[2:])),
        text.get("max_seq_length"),
        bool(text.get("do_lower_case")),
        prompts.get("prompts") or {},
        prompts.get("default_prompt_name"),
    )


def _module_kind(entry: Mapping[str, Any]) -> str:
    kind = str(entry.get("type"))
    return kind.rpartition(".")[2] if kind.startswith(_PACKAGE) else kind


def _unknown_module(checkpoint: Path, entry: Mapping[str, Any]) -> errors.Fatal:
    return errors.Fatal(
        f"{checkpoint / MODULES} has the module {entry.get('type')} in a place where it is not served; the modules "
        "must be Transformer, Pooling, and then any of Dense and Normalize"
    )


def _read_steps(checkpoint: Path, entries: list[dict[str, Any]]) -> Iterator[nn.Module]:
    for entry in entries:
        kind, path = _module_kind(entry), checkpoint / str(entry["path"])
        if kind not in ("Dense", "Normalize"):
            raise _unknown_module(checkpoint, entry)
        config = _read_json(path / "config.json", {})
        places = {config.get("module_input_name"), config.get("module_output_name")}
        if config.get("use_residual") or not places <= {None, "sentence_embedding"}:
            raise errors.Fatal(f"{path}: a {kind} must map a sentence_embedding to another, without use_residual")
        if kind == "Normalize":
            yield Normalize()
        else:
            yield from _load_dense(path, config)


def _load_dense(path: Path, config: Mapping[str, Any]) -> Iterator[nn.Module]:
    from safetensors.torch import load_file

    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = getattr(nn, name.rpartition(".")[2], None) if name.startswith("torch.nn.") else None
    if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
        raise errors.Fatal(f"{path}: unknown activation_function {name}, use a module of torch.nn")
    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    try:
        weights = load_file(path / "model.safetensors")
        linear.load_state_dict({key.removeprefix("linear."): value.float() for key, value in weights.items()})
    except (OSError, RuntimeError) as error:
        raise errors.Fatal(f"{path / 'model.safetensors'} cannot be loaded: {error}") from error
    yield from (linear, activation())


def _read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    config = _read_json(path / "config.json")
    modes = config.get("pooling_mode") or [mode for key, mode in _LEGACY_MODES.items() if config.get(key)] or "mean"
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if unknown := [str(mode) for mode in modes if mode not in _POOLINGS]:
        raise errors.Fatal(f"{path}: unknown pooling {', '.join(unknown)}, use {', '.join(_POOLINGS)}")
    return modes, bool(config.get("include_prompt", True))


def _read_json(path: Path, default: Any = None) -> Any:
    if default is not None and not path.exists():
        return default
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise errors.Fatal(f"{path} cannot be read: {error}") from error


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
