"""LoRA adapters in the format of PEFT: ``adapter_config.json`` and the header of ``adapter_model.safetensors``.

Reads no weights, and needs no library.

LoRA adapters in GGUF files, for models in GGUF files.

llama.cpp applies them. Reads no weights.

LoRA adapters that are loaded at run time, from one allowed directory.

A source has the path of an adapter below that directory, so machines may have it at different places. It also has the
digest of the adapter's files: after a change of the files, it is another adapter.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from omnibus.checkpoints import safetensors
from omnibus.checkpoints.gguf_header import GgufHeader, is_gguf, read_gguf_header
from omnibus.checkpoints.safetensors import TensorHeader
from omnibus.errors import BadRequest, Conflict, Forbidden

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
#: Prefix of the names of an adapter's weights, and suffixes of its two matrices.
PREFIX, DOWN_SUFFIX, UP_SUFFIX = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
#: Settings of PEFT that change the computation of an adapter and that no engine here supports.
_UNSUPPORTED = (
    "alora_invocation_tokens", "alpha_pattern", "arrow_config", "fan_in_fan_out", "layer_replication", "lora_bias",
    "megatron_config", "modules_to_save", "rank_pattern", "target_parameters", "trainable_token_indices", "use_bdlora",
    "use_dora", "use_qalora",
)  # fmt: skip
#: Values of ``init_lora_weights`` that keep the base's weights. Others change them when PEFT loads the adapter.
_PLAIN_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
_DTYPES = ("F32", "F16", "BF16")
_MAX_CONFIG_BYTES = 1 << 20
_MAX_NAMED = 3


class LoraAdapter(NamedTuple):
    """Adapter on disk. ``modules`` are the linear layers that it adapts, as (outputs, inputs) by their path in the
    model that it was trained on. To the output of each layer it adds ``scale * B @ A @ x``; A has ``rank`` rows."""

    directory: Path
    rank: int
    scale: float
    modules: dict[str, tuple[int, int]]

    @property
    def weights_file(self) -> Path:
        return self.directory / WEIGHTS_FILE


def read_adapter(directory: Path) -> LoraAdapter:
    """Read the adapter in ``directory``. Raises ``BadRequest`` if it is invalid or not supported."""
    try:
        config = _read_config(directory)
        rank, alpha = _read_number(config, "r"), _read_number(config, "lora_alpha")
        if rank < 1 or rank != int(rank):
            raise BadRequest(f"{CONFIG_FILE} must have a whole number from 1 on as rank r, not {rank:g}")
        _require_supported(config)
        modules = dict(_read_modules(_read_tensors(directory), int(rank)))
        _compare_targets(config.get("target_modules"), modules)
    except BadRequest as error:
        raise BadRequest(f"adapter {directory}: {error.message}") from error
    divisor = math.sqrt(rank) if config.get("use_rslora") else rank
    return LoraAdapter(directory, int(rank), alpha / divisor, modules)


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_FILE
    if is_gguf(directory):
        raise BadRequest("it is GGUF, which only omnibus_engines:llama_cpp applies, and only to a model in GGUF")
    if not path.is_file():
        raise BadRequest(f"it has no {CONFIG_FILE}; an adapter is a directory as PEFT's `save_pretrained` writes it")
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise BadRequest(f"{CONFIG_FILE} has more than {_MAX_CONFIG_BYTES} bytes")
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise BadRequest(f"{CONFIG_FILE} cannot be read: {error}") from error


def _read_number(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRequest(f"{CONFIG_FILE} must have a number {name!r}")
    return float(value)


def _require_supported(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise BadRequest(f"{CONFIG_FILE} has peft_type {kind!r}; only LORA is supported")
    for name in _UNSUPPORTED:
        if config.get(name):
            raise BadRequest(f"{CONFIG_FILE} uses {name}, which is not supported: merge the adapter into its model")
    if config.get("bias", "none") != "none":
        raise BadRequest(f"{CONFIG_FILE} has bias {config['bias']!r}, which is not supported: train it with 'none'")
    if config.get("init_lora_weights", True) not in _PLAIN_INITS:
        raise BadRequest(
            f"{CONFIG_FILE} has init_lora_weights {config['init_lora_weights']!r}, which changes the model's own "
            "weights and is not supported: let PEFT convert it (`path_initial_model_for_weight_conversion`)"
        )


def _read_tensors(directory: Path) -> dict[str, safetensors.TensorHeader]:
    path = directory / WEIGHTS_FILE
    if path.is_file():
        return safetensors.read_header(path)
    pickles = sorted(each.name for each in directory.glob("*.bin"))
    if pickles:
        raise BadRequest(f"{pickles[0]} is a pickle, which is never read: convert it to {WEIGHTS_FILE}")
    raise BadRequest(f"it has no {WEIGHTS_FILE}; was it downloaded whole?")


def _read_modules(tensors: Mapping[str, safetensors.TensorHeader], rank: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each adapted module and its (outputs, inputs)."""
    for name in tensors:
        if not name.startswith(PREFIX) or not name.endswith((DOWN_SUFFIX, UP_SUFFIX)):
            raise BadRequest(f"{WEIGHTS_FILE} contains {name}, which is not a LoRA matrix of a linear layer")
    modules = {name.removeprefix(PREFIX).removesuffix(DOWN_SUFFIX).removesuffix(UP_SUFFIX) for name in tensors}
    if not modules:
        raise BadRequest(f"{WEIGHTS_FILE} contains no weights")
    for module in sorted(modules):
        down, up = (tensors.get(f"{PREFIX}{module}{suffix}") for suffix in (DOWN_SUFFIX, UP_SUFFIX))
        if down is None or up is None:
            raise BadRequest(f"{WEIGHTS_FILE} has only one of the two matrices of {module}")
        _check_matrices(module, down, up, rank)
        yield module, (up.shape[0], down.shape[1])


def _check_matrices(module: str, down: safetensors.TensorHeader, up: safetensors.TensorHeader, rank: int) -> None:
    if len(down.shape) != 2 or len(up.shape) != 2 or (down.shape[0], up.shape[1]) != (rank, rank):
        shapes = f"{list(down.shape)} and {list(up.shape)}"
        raise BadRequest(
            f"{module} has matrices of {shapes}; with rank {rank} they must be [{rank}, n] and [m, {rank}]"
        )
    strange = sorted({down.dtype, up.dtype} - {*_DTYPES})
    if strange:
        raise BadRequest(f"{module} has weights in {', '.join(strange)}; they must be {', '.join(_DTYPES)}")


def _compare_targets(targets: Any, modules: Mapping[str, Any]) -> None:
    """Compare the weights with ``target_modules``, if that is a list of names."""
    if not isinstance(targets, list):
        return
    ends = tuple(f".{target}" for target in targets)
    other_modules = [module for module in modules if not f".{module}".endswith(ends)]
    if other_modules:
        raise BadRequest(
            f"{WEIGHTS_FILE} adapts {_list_names(other_modules)}, not among target_modules of {CONFIG_FILE}"
        )
    missing_targets = [
        target for target in targets if not any(f".{module}".endswith(f".{target}") for module in modules)
    ]
    if missing_targets:
        raise BadRequest(
            f"target_modules has {_list_names(sorted(missing_targets))}, of which {WEIGHTS_FILE} has no weights"
        )


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


#: Suffixes of the names of an adapter's two matrices.
_DOWN_SUFFIX, _UP_SUFFIX = ".lora_a", ".lora_b"
_EMBEDDING = "token_embd.weight"
_INVOCATION = "adapter.alora.invocation_tokens"


def require_fitting_adapter(file: Path, checkpoint: Path) -> None:
    """Raise ``BadRequest`` unless ``file`` is a LoRA adapter for ``checkpoint``.

    Both are GGUF files.
    """
    if not is_gguf(file):
        raise BadRequest(
            f"adapter {file} is not a GGUF file, the only format of adapters on llama.cpp: convert it with llama.cpp's "
            "convert_lora_to_gguf.py, or use omnibus_engines:transformers"
        )
    try:
        adapter = read_gguf_header(file)
        _require_lora(adapter)
        model = read_gguf_header(checkpoint)
        if adapter.architecture != model.architecture:
            raise BadRequest(
                f"it is for the architecture {adapter.architecture!r}, and {model.path.name} is {model.architecture!r}"
            )
        for name in _adapted_tensors(adapter):
            _compare_shapes(name, adapter.tensors, model)
    except BadRequest as error:
        raise BadRequest(f"adapter {file}: {error.message}") from error


def _require_lora(adapter: GgufHeader) -> None:
    kind, lora_type = adapter.metadata.get("general.type"), adapter.metadata.get("adapter.type")
    if kind != "adapter":
        raise BadRequest(f"it is a GGUF file of the type {kind or 'model'!r}, not an adapter")
    if lora_type != "lora" or _INVOCATION in adapter.metadata:
        kind = "aLoRA" if lora_type == "lora" else repr(lora_type)
        raise BadRequest(f"it is an adapter of the type {kind}; only LoRA is supported")
    if not isinstance(adapter.metadata.get("adapter.lora.alpha"), float):
        raise BadRequest("its metadata lack adapter.lora.alpha: convert it again")


def _adapted_tensors(adapter: GgufHeader) -> list[str]:
    """Return the names of the model's tensors that the adapter changes."""
    if not adapter.tensors:
        raise BadRequest("it has no weights")
    if odd := next((name for name in adapter.tensors if not name.endswith((_DOWN_SUFFIX, _UP_SUFFIX))), ""):
        raise BadRequest(f"it contains {odd}, which is not a LoRA matrix")
    names = sorted({name.removesuffix(_DOWN_SUFFIX).removesuffix(_UP_SUFFIX) for name in adapter.tensors})
    if _EMBEDDING in names:
        raise BadRequest("it adapts embeddings, which is not supported: merge it into its model")
    return names


def _compare_shapes(name: str, tensors: Mapping[str, TensorHeader], model: GgufHeader) -> None:
    down, up, own = tensors.get(name + _DOWN_SUFFIX), tensors.get(name + _UP_SUFFIX), model.tensors.get(name)
    if down is None or up is None:
        raise BadRequest(f"it has only one of the two matrices of {name}")
    if own is None:
        raise BadRequest(f"it adapts {name}, which {model.path.name} lacks: it was trained on another model")
    expected = own.shape if len(own.shape) > 1 else ()
    if len(down.shape) < 2 or (*up.shape[:-1], *down.shape[-1:]) != expected or up.shape[-1] != down.shape[-2]:
        raise BadRequest(
            f"its matrices of {name} are {list(down.shape)} and {list(up.shape)}, and {model.path.name} has "
            f"{list(own.shape)}: it was trained on another model"
        )


_FILES = (CONFIG_FILE, WEIGHTS_FILE)


class AdapterSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adapter by path and digest. ``path`` is below the allowed directory, ``sha256`` is that of its files in hex."""

    path: str
    sha256: str


def describe_adapter(path: str, root: str, setting: str) -> tuple[AdapterSource, LoraAdapter]:
    """Return the source of the adapter at ``path``, and its header. Reads all its files.

    ``path`` is absolute or relative to ``root``. Raises ``Forbidden`` that names ``setting`` if no directory or another
    one is allowed. Raises ``BadRequest`` if the files are not an adapter, or not a supported one.
    """
    directory = _resolve_directory(path, root, setting)
    adapter = read_adapter(directory)
    return AdapterSource(str(directory.relative_to(Path(root).resolve())), _compute_digest(directory)), adapter


def open_adapter(name: str, source: AdapterSource, root: str, setting: str) -> LoraAdapter:
    """Return the header of the adapter ``name`` at ``source``. Reads all its files.

    Raises as ``describe_adapter``, and ``Conflict`` if its files changed after it was loaded.
    """
    current, adapter = describe_adapter(source.path, root, setting)
    if current.sha256 != source.sha256:
        raise Conflict(f"the files of the adapter {name!r} have changed since it was loaded: load it again")
    return adapter


def _resolve_directory(path: str, root: str, setting: str) -> Path:
    """Return the directory of an adapter, with links resolved. It and its files must be below ``root``."""
    if not root:
        raise Forbidden(f"adapters cannot be loaded at run time: set {setting} to their directory")
    base = Path(root).resolve()
    try:
        directory = (base / path).resolve()
        inside = all(each.resolve().is_relative_to(base) for each in (directory, *(directory / one for one in _FILES)))
        there = directory.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, or links in a circle
        inside, there = True, False
    if not inside:
        raise Forbidden(f"{path[:80]!r} is not below {setting}", param="lora_path")
    if not there:
        raise BadRequest(f"unknown directory {path[:80]!r} below {setting}", param="lora_path")
    return directory


def _compute_digest(directory: Path) -> str:
    whole = hashlib.sha256()
    for name in _FILES:
        with (directory / name).open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
