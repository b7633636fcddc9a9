"""Report of a checkpoint: each component of its family, as it would load."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from omnibus.checkpoints import safetensors
from omnibus.checkpoints.adapters import read_adapter, require_fitting_adapter
from omnibus.checkpoints.generation_config import read_sampling
from omnibus.checkpoints.gguf_header import (
    EMBEDDERS,
    GGUF_BLOCKS,
    find_projector,
    is_gguf,
    projector_notes,
    read_gguf_header,
)
from omnibus.checkpoints.report import ComponentReport, Report
from omnibus.errors import BadRequest, OmnibusError
from omnibus.families.specs import KNOWN
from omnibus_models import families, loading
from omnibus_models.adapters import match_modules
from omnibus_models.examine.meta_loader import BuiltModel, DryLoader

#: Dtypes that components can be loaded in, by their names in the headers of files.
_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
#: Kinds of the unit tasks of components with a cache of earlier positions.
_CAUSAL_TASKS = ("think", "talk", "prior", "denoise")
_MAX_QUOTED_CHARS = 500  # characters of a library's message


def examine_checkpoint(checkpoint: Path, dtype: str = "", adapters: Sequence[str] = ()) -> Report:
    """Return a report of ``checkpoint``, loaded in ``dtype`` or its own.

    ``adapters`` are directories of LoRA adapters for its language model. Raises ``NotFound`` for an unknown family, and
    ``Fatal`` for an unknown dtype.
    """
    family = families.family_of(checkpoint)
    dtype = dtype or _stored_dtype(checkpoint)
    loading.torch_dtype(dtype)
    dry = DryLoader()
    with dry.replace_loaders():
        parts = {name: _component_report(family, name, checkpoint, dtype, dry) for name in family.components}
        stays = is_gguf(checkpoint) and family.name == EMBEDDERS
        if is_gguf(checkpoint):
            parts |= {
                name: _add_stored_size(part, find_projector(checkpoint) or checkpoint, dry)
                for name, part in parts.items()
                if name != "thinker"
            }
        thinker = parts.get("thinker")
        fits = {name: _adapter_fault(family, checkpoint, dtype, Path(name)) for name in adapters}
        reason = _vllm_refusal(family, checkpoint, dtype) if thinker is not None and not thinker.problem else ""
    files = dry.directories.values()
    stored_bytes: Counter[str] = Counter()
    for tensor in (tensor for each in files for tensor in each.tensors.values()):
        stored_bytes[_NAMES.get(tensor.dtype, tensor.dtype)] += tensor.nbytes
    return Report(
        path=str(checkpoint),
        family=family.name,
        dtype=stored_bytes.most_common(1)[0][0] if stays else dtype,
        parts=parts,
        stored=dict(stored_bytes),
        files=sum(each.files for each in files),
        lost=sorted(
            _relative_name(checkpoint, path, name) for path, each in dry.directories.items() for name in each.lost
        ),
        broken=[
            _relative_name(checkpoint, path, fault) for path, each in dry.directories.items() for fault in each.broken
        ],
        vllm=reason,
        adapters=fits,
        sampling=read_sampling(checkpoint),
        notes=_gguf_notes(checkpoint) if is_gguf(checkpoint) else [],
        image_defaults=family.image_defaults(checkpoint) if hasattr(family, "image_defaults") else {},
    )


def _component_report(family: Any, name: str, checkpoint: Path, dtype: str, dry: DryLoader) -> ComponentReport:
    dry.looks.clear()
    component, problem = None, ""
    try:
        component = family.load(name, checkpoint, dtype=dtype)
    except OmnibusError as error:
        problem = _first_line(error.message)
    except Exception as error:  # noqa: BLE001 whatever a stranger's checkpoint makes a library raise
        problem = _first_line(f"{type(error).__name__}: {error}")
    looks = list(dry.looks)
    config = _attention_config(component, looks) if KNOWN[family.name].tasks[name] in _CAUSAL_TASKS else None
    return ComponentReport(
        parameters=sum(tensor.numel() for look in looks for tensor in look.module.parameters()),
        nbytes=sum(tensor.numel() * tensor.element_size() for look in looks for tensor in _held_tensors(look)),
        missing=[missing for look in looks for missing in look.missing],
        odd=[odd for look in looks for odd in look.odd],
        problem=problem,
        kv_bytes=0 if config is None else _cache_bytes(config, dtype),
        context=int(getattr(config, "max_position_embeddings", 0)),
    )


def _add_stored_size(part: ComponentReport, checkpoint: Path, dry: DryLoader) -> ComponentReport:
    """Return the report of a component with the weights of its GGUF file, which stay as they are."""
    parameters = sum(tensor.numel() for tensor in dry.describe_tensors(checkpoint).values())
    nbytes = sum(tensor.nbytes for tensor in dry.directories[checkpoint].tensors.values())
    return structs.replace(part, parameters=parameters, nbytes=nbytes)


def _held_tensors(look: BuiltModel) -> Iterator[Any]:
    yield from look.module.parameters()
    yield from look.module.buffers()


def _attention_config(component: Any, looks: Sequence[BuiltModel]) -> Any:
    """Return the configuration of the self-attention layers, or None without a model."""
    backbone = getattr(component, "backbone", None)
    if backbone is None and looks:  # it was built before an error
        backbone = getattr(looks[0].module, "get_decoder", lambda: None)()
    return getattr(backbone, "config", None)


def _cache_bytes(config: Any, dtype: str) -> int:
    """Return the bytes that one position takes in the layers' cache."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # Cross-attention layers cache rows of images and none of the sequence.
    layers = config.num_hidden_layers - len(getattr(config, "cross_attention_layers", None) or ())
    return int(2 * layers * heads * width * loading.torch_dtype(dtype).itemsize)


def _vllm_refusal(family: Any, checkpoint: Path, dtype: str) -> str:
    """Return why the language model does not run in vLLM, or ""."""
    if is_gguf(checkpoint):
        return "omnibus_engines:vllm does not serve GGUF"
    try:
        family.reader(checkpoint, dtype)
    except OmnibusError as error:
        return _first_line(error.message)
    return ""


def _adapter_fault(family: Any, checkpoint: Path, dtype: str, adapter: Path) -> str:
    """Return why the adapter does not fit the language model, or ""."""
    try:
        if is_gguf(adapter) and is_gguf(checkpoint):
            require_fitting_adapter(adapter, checkpoint)
            return ""
        match_modules(family.load("thinker", checkpoint, dtype=dtype), read_adapter(adapter))
    except OmnibusError as error:
        return _first_line(error.message)
    return ""


def _gguf_notes(checkpoint: Path) -> list[str]:
    """Return what the file lacks, in words."""
    header = read_gguf_header(checkpoint)
    if header.is_embedder:
        return [
            f"pooling: {header.pooling}, by the file's metadata; vectors have length 1",
            "no prompts and no dense layers: GGUF does not have those of sentence-transformers",
            "llama.cpp runs it on a CPU, with the weights as they are in the file",
        ]
    lacks = projector_notes(checkpoint)
    if not find_projector(checkpoint):
        lacks.insert(0, "no processor: the model takes only text")
    if header.scaling:
        lacks.append(f"scaled positions ({header.scaling}): on llama.cpp only")
    if not read_sampling(checkpoint):
        lacks.append(
            "no generation config: requests without a temperature sample at 1, and end tokens are the header's"
        )
    if "tokenizer.chat_template" not in header.metadata:
        lacks.append("no chat template: chats are rejected, send prompts to /v1/completions")
    return lacks


def _stored_dtype(checkpoint: Path) -> str:
    """Return the dtype of most of the weights, or the configured one. Blocks of GGUF count as float32."""
    byte_counts: Counter[str] = Counter()
    for path in [checkpoint] if is_gguf(checkpoint) else checkpoint.rglob("*.safetensors"):
        try:
            tensors = (read_gguf_header(path).tensors if is_gguf(path) else safetensors.read_header(path)).values()
        except BadRequest:  # reported with its component
            continue
        for tensor in tensors:
            dtype = "float32" if tensor.dtype in GGUF_BLOCKS else _NAMES.get(tensor.dtype, "")
            byte_counts[dtype] += tensor.nbytes
    byte_counts.pop("", None)
    return byte_counts.most_common(1)[0][0] if byte_counts else _configured_dtype(checkpoint / "config.json")


def _configured_dtype(path: Path) -> str:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        return "float32"
    configs = [config, *(value for value in config.values() if isinstance(value, dict))]
    dtypes = [each.get("dtype") or each.get("torch_dtype") for each in configs]
    return next((dtype for dtype in dtypes if dtype in _NAMES.values()), "float32")


def _relative_name(checkpoint: Path, directory: Path, name: str) -> str:
    part = directory.relative_to(checkpoint) if directory.is_relative_to(checkpoint) else directory
    return str(part / name)


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "it cannot be loaded")
    return line if len(line) <= _MAX_QUOTED_CHARS else f"{line[:_MAX_QUOTED_CHARS]} …"
