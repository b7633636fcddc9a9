"""Language models in GGUF files: configuration, tokenizer and dequantised weights, as transformers reads them.

A directory of a checkpoint is passed on to the library's own loaders. The library's ``gguf_file`` of models requires
``accelerate``, beside which it behaves differently, so weights are read here and passed to it.
"""

import tempfile
from collections import Counter
from functools import cache, lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import modeling_gguf_pytorch_utils

from omnibus.checkpoints.gguf_header import is_gguf, read_gguf_header, require_convertible, require_language_model
from omnibus.errors import Fatal

# The library does not know the language model of Qwen2-VL, whose fields and weights are those of Qwen2.
_FIELD_NAMES = modeling_gguf_pytorch_utils.GGUF_TO_TRANSFORMERS_MAPPING["config"]
_FIELD_NAMES["qwen2vl"] = _FIELD_NAMES["qwen2"]
modeling_gguf_pytorch_utils.GGUF_SUPPORTED_ARCHITECTURES.append("qwen2vl")
# Keep the service's log free of the progress bar of dequantisation.
modeling_gguf_pytorch_utils.tqdm = partial(tqdm, disable=True)

#: Fields of files that the library ignores for some architectures, and their names in configurations.
_SIZES = {
    "attention.key_length": "head_dim",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}


def load_config(checkpoint: Path) -> Any:
    """Return the configuration of a checkpoint. Raises ``BadRequest`` for a GGUF file that cannot be loaded."""
    from transformers import AutoConfig

    if not is_gguf(checkpoint):
        return AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    status = checkpoint.stat()
    return AutoConfig.for_model(**_read_fields(checkpoint, status.st_size, status.st_mtime_ns))


@cache
def _prepare_reader() -> None:
    """Import ``gguf``. The library makes its table of names again for each submodule, which takes seconds."""
    try:
        import gguf
    except ImportError:
        raise Fatal("gguf, to read GGUF files, is missing: pip install 'omnibus-serve[llm]'") from None
    gguf.get_tensor_name_map = lru_cache(gguf.get_tensor_name_map)


@lru_cache(maxsize=4)
def _read_fields(checkpoint: Path, size: int, modified: int) -> dict[str, Any]:
    """Return the fields of the configuration, whose reading takes seconds. A changed file is read again."""
    header = read_gguf_header(checkpoint)
    require_language_model(header)
    _prepare_reader()
    fields: dict[str, Any] = modeling_gguf_pytorch_utils.load_gguf_checkpoint(str(checkpoint))["config"]
    sizes = {name: header.field(field) for field, name in _SIZES.items()}
    if header.architecture == "qwen2vl":
        fields["model_type"] = header.model_type
    return {**{name: size for name, size in sizes.items() if size is not None}, **fields}


def load_tokenizer(checkpoint: Path) -> Any:
    """Return the tokenizer of a checkpoint. That of a GGUF file adds the begin token to prompts if the file says so."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not is_gguf(checkpoint):
        return AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    with tempfile.TemporaryDirectory() as empty:  # files next to it may be of another model
        # AutoTokenizer returns the same one, after seconds for the configuration.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            empty, gguf_file=str(checkpoint.resolve()), local_files_only=True
        )
    metadata = read_gguf_header(checkpoint).metadata
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", metadata.get("tokenizer.ggml.model") == "llama")
    if adds_bos and tokenizer.bos_token_id is not None:
        tokenizer.add_bos_token = True
    return tokenizer


def read_weights(cls: Any, config: Any, checkpoint: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights of a file for a model of ``cls``, in ``dtype`` and by the library's names.

    Raises ``BadRequest`` for a file that the library loads as another model.
    """
    require_convertible(read_gguf_header(checkpoint))
    with torch.device("meta"):
        module = cls(config)
    state: dict[str, torch.Tensor] = modeling_gguf_pytorch_utils.load_gguf_checkpoint(
        str(checkpoint), return_tensors=True, model_to_load=module, torch_dtype=dtype
    )["tensors"]
    return state


def describe_weights(cls: Any, config: Any, checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the weights of ``read_weights`` without memory, on torch's meta device. Reads the header only.

    The library joins and reshapes some. One with as many values as the model's has its shape, others are flat.
    """
    header = read_gguf_header(checkpoint)
    with torch.device("meta"):
        module = cls(config)
    processors = modeling_gguf_pytorch_utils.TENSOR_PROCESSORS
    processor = processors.get(header.architecture, modeling_gguf_pytorch_utils.TensorProcessor)(
        config=config.to_dict()
    )
    names = modeling_gguf_pytorch_utils.get_gguf_hf_weights_map(module, processor)
    sizes: Counter[str] = Counter()
    for name, tensor in header.tensors.items():
        own_name = names.get(name) or names.get(name.removesuffix(".weight"))
        if own_name:
            sizes[own_name] += prod(tensor.shape)
    shapes = {name: weights.shape for name, weights in module.state_dict().items()}
    return {
        name: torch.empty(shapes[name] if shapes[name].numel() == size else (size,), device="meta")
        for name, size in sizes.items()
    }


def stop_ids(checkpoint: Path, config: Any) -> list[int]:
    """Return the tokens that end an answer: those of the library, and the file's end of a turn."""
    end = config.eos_token_id
    turn = read_gguf_header(checkpoint).metadata.get("tokenizer.ggml.eot_token_id")
    return sorted({each for each in [*(end if isinstance(end, list) else [end]), turn] if each is not None})
