"""LoRA adapters in GGUF files, for models in GGUF files.

llama.cpp applies them. Reads no weights.
"""

from collections.abc import Mapping
from pathlib import Path

from omnibus.checkpoints.gguf_header import GgufHeader, is_gguf, read_gguf_header
from omnibus.checkpoints.safetensors import TensorHeader
from omnibus.errors import BadRequest

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
