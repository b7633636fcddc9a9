"""Checkpoints of models: lookup, contents of their files, and reports. No torch.

A checkpoint is a directory, a GGUF file or an id on the Hugging Face hub. An id is such as
``Qwen/Qwen2.5-VL-7B-Instruct``, or with a revision ``Qwen/Qwen2.5-VL-7B-Instruct@main``. It stands for its directory in
the hub's cache.
"""

from omnibus.checkpoints.hub import (
    download_checkpoint,
    find_checkpoint,
    is_id,
    require_named_file,
    require_safetensors,
    resolve_checkpoint,
)

__all__ = [
    "download_checkpoint",
    "find_checkpoint",
    "is_id",
    "require_named_file",
    "require_safetensors",
    "resolve_checkpoint",
]
