"""Ids of the Hugging Face hub: lookup in its cache, and downloads.

Only ``download_checkpoint`` connects to the hub. The cache is that of the hub's own client (``HF_HOME``).
"""

import json
import re
from pathlib import Path
from typing import Any

from omnibus.checkpoints import adapters, safetensors
from omnibus.checkpoints.gguf_header import find_projectors, is_gguf
from omnibus.errors import BadRequest, Fatal, Forbidden, HubUnavailable, NotFound, OmnibusError

#: An owner, a name, and optionally a revision.
_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
#: The file that describes a checkpoint: of a pipeline, else of a model, else of an adapter.
_PIPELINE_FILES = ("model_index.json", "modular_model_index.json")
_CONFIG_FILES = (*_PIPELINE_FILES, "config.json", adapters.CONFIG_FILE)
#: Files that a checkpoint needs next to weights: configurations, tokenizers, chat templates, voices. No code.
_METADATA_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "spk_dict.pt")


def is_id(checkpoint: str) -> bool:
    """Return whether ``checkpoint`` is an id of the hub. An existing path is not."""
    return _ID.fullmatch(checkpoint) is not None and not Path(checkpoint).exists()


def resolve_checkpoint(checkpoint: str) -> Path:
    """Return the directory of an id. Any other text is returned as a path: a directory or a GGUF file.

    Raises as ``find_checkpoint``, and as ``require_named_file``.
    """
    path = find_checkpoint(checkpoint) if is_id(checkpoint) else Path(checkpoint)
    require_named_file(path)
    return path


def require_named_file(path: Path) -> None:
    """Raise ``BadRequest`` for a directory of GGUF files: each of them is a checkpoint."""
    files = sorted(path.glob("*.gguf")) if path.is_dir() and not any(path.glob("*.safetensors")) else []
    if files:
        projectors = find_projectors(path)
        example = next((file for file in files if file not in projectors), files[0])
        raise BadRequest(f"{path} contains only GGUF files: name one of them as the checkpoint, such as {example}")


def require_safetensors(path: Path) -> None:
    """Raise ``BadRequest`` for GGUF, which vLLM does not load. It is a file, or a directory without safetensors."""
    if path.suffix == ".gguf":
        raise BadRequest(
            f"{path} is GGUF, which omnibus_engines:vllm does not serve: use omnibus_engines:transformers, or the "
            "model's safetensors. For small weights, use AWQ, GPTQ or compressed-tensors"
        )
    require_named_file(path)


def find_checkpoint(checkpoint: str) -> Path:
    """Return the directory or the GGUF file of ``checkpoint``. Raises ``NotFound`` with the remedy."""
    path = Path(checkpoint)
    if checkpoint and (path.is_dir() or is_gguf(path)):
        return path
    if not is_id(checkpoint):
        raise NotFound(
            f"{checkpoint or 'nothing'} is not a directory of a checkpoint, nor a GGUF file, nor an id of the Hugging "
            "Face hub such as Qwen/Qwen2.5-VL-7B-Instruct"
        )
    directory = _cached_directory(checkpoint)
    if directory is None:
        raise NotFound(
            f"{checkpoint} is not a directory, nor in this machine's cache of the Hugging Face hub: download it "
            f"with `omnibus models get {checkpoint}`, or set OMNIBUS_EXECUTOR_DOWNLOAD=1 for executors"
        )
    return directory


def download_checkpoint(checkpoint: str) -> Path:
    """Download the missing files of an id and return its directory. These are configurations, tokenizers and
    safetensors, no code and no pickles.

    Raises ``BadRequest`` for an invalid id, ``NotFound`` for one that is unknown to the hub, ``Forbidden`` for one that
    requires permission, and ``HubUnavailable``.
    """
    match = _ID.fullmatch(checkpoint)
    if match is None:
        raise BadRequest(f"{checkpoint} is not an id of the Hugging Face hub such as Qwen/Qwen2.5-VL-7B-Instruct")
    id, revision = match.groups()
    client = _hub_client()
    try:
        directory = Path(client.snapshot_download(id, revision=revision, allow_patterns=list(_METADATA_PATTERNS)))
        client.snapshot_download(id, revision=revision, allow_patterns=[*_METADATA_PATTERNS, *_weight_files(directory)])
    except Exception as error:  # the client's own errors and those of the HTTP library that it happens to use
        raise _hub_error(checkpoint, error) from error
    return directory


def _cached_directory(checkpoint: str) -> Path | None:
    match = _ID.fullmatch(checkpoint)
    id, revision = match.groups() if match else ("", None)
    client = _hub_client()
    for kind in _CONFIG_FILES:
        file = client.try_to_load_from_cache(id, kind, revision=revision)
        if isinstance(file, str):
            return Path(file).parent
    return None


def _weight_files(directory: Path) -> list[str]:
    """Return the files of weights that the configurations in ``directory`` use. A repository may have more."""
    if (directory / adapters.CONFIG_FILE).exists():
        return [adapters.WEIGHTS_FILE]
    parts = ["", *(f"{part}/" for part in _pipeline_parts(directory))]
    return [f"{part}{name}" for part in parts for name in safetensors.weight_file_names(directory / part)]


def _pipeline_parts(directory: Path) -> list[str]:
    """Return the directories of a pipeline."""
    index = next((directory / name for name in _PIPELINE_FILES if (directory / name).exists()), None)
    if index is None:
        return []
    parts: dict[str, Any] = json.loads(index.read_text())
    return [name for name, kind in parts.items() if isinstance(kind, list) and kind[0] is not None]


def _hub_client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise Fatal("huggingface_hub is missing, for the hub's cache: pip install 'omnibus-serve[llm]'") from None
    return huggingface_hub


def _hub_error(checkpoint: str, error: Exception) -> OmnibusError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return Forbidden(
            f"access to {checkpoint} is restricted: accept its terms on the hub, then set HF_TOKEN to your token"
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        return NotFound(
            f"the Hugging Face hub has no {checkpoint}; if it is private, set HF_TOKEN to a token that may read it"
        )
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return HubUnavailable(f"{checkpoint} was not downloaded: {lines[0]}")
