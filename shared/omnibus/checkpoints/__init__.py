"""Checkpoints of models: where they are, what is in their files, what was found out about one. No torch.

A checkpoint is the directory of one, or the id of one on the Hugging Face hub, ``Qwen/Qwen2.5-VL-7B-Instruct`` or with
a revision ``Qwen/Qwen2.5-VL-7B-Instruct@main``, which stands for its directory in the hub's cache.
"""

from omnibus.checkpoints.hub import (
    download_checkpoint,
    find_checkpoint,
    is_id,
    require_safetensors,
    resolve_checkpoint,
)

__all__ = ["download_checkpoint", "find_checkpoint", "is_id", "require_safetensors", "resolve_checkpoint"]
