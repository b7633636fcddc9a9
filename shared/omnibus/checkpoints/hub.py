"""Ids of the Hugging Face hub: their directories in its cache, and how they get there.

Nothing here goes to the hub but ``download_checkpoint``. The cache is where the hub's own client has it (``HF_HOME``).
"""

import json
import re
from pathlib import Path
from typing import Any

from omnibus.checkpoints import adapters, safetensors
from omnibus.errors import BadRequest, Fatal, Forbidden, HubUnavailable, NotFound, OmnibusError

#: An owner, a name, perhaps a revision.
_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
#: The file that says what a checkpoint is: of a pipeline, else of a model, else of an adapter.
_CONFIG_FILES = ("model_index.json", "config.json", adapters.CONFIG_FILE)
#: All that a checkpoint needs beside its weights: configurations, tokenizers, chat templates, voices. No code.
_METADATA_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "spk_dict.pt")


def is_id(checkpoint: str) -> bool:
    """Return whether ``checkpoint`` is an id of the hub; a path that is there is none."""
    return _ID.fullmatch(checkpoint) is not None and not Path(checkpoint).exists()


def resolve_checkpoint(checkpoint: str) -> Path:
    """The directory of an id, and anything else as the path that it is.

    Raises as ``find_checkpoint``, and ``BadRequest`` for GGUF.
    """
    found = find_checkpoint(checkpoint) if is_id(checkpoint) else Path(checkpoint)
    require_safetensors(found)
    return found


def require_safetensors(path: Path) -> None:
    """Raise ``BadRequest`` for a file of GGUF, and for a directory that has weights in this format alone."""
    in_directory = path.is_dir() and any(path.glob("*.gguf")) and not any(path.glob("*.safetensors"))
    if in_directory or path.suffix == ".gguf":
        raise BadRequest(
            f"{path} is GGUF, which no engine here reads: name the model's safetensors; small ones are those "
            "quantised as AWQ, GPTQ or compressed-tensors, which run in services.engines:vllm"
        )


def find_checkpoint(checkpoint: str) -> Path:
    """The directory of ``checkpoint``. Raises ``NotFound`` that says what to do."""
    path = Path(checkpoint)
    if checkpoint and path.is_dir():
        return path
    if not is_id(checkpoint):
        raise NotFound(
            f"{checkpoint or 'nothing'} is no directory of a checkpoint, nor an id of the Hugging Face hub such as "
            "Qwen/Qwen2.5-VL-7B-Instruct"
        )
    found = _cached_directory(checkpoint)
    if found is None:
        raise NotFound(
            f"{checkpoint} is no directory here, nor is it in this machine's cache of the Hugging Face hub: "
            f"`omnibus models get {checkpoint}` downloads it, and so do executors with OMNIBUS_EXECUTOR_DOWNLOAD=1"
        )
    return found


def download_checkpoint(checkpoint: str) -> Path:
    """Download what is not there yet of an id: configurations, tokenizers and safetensors, no code and no pickles.

    Returns its directory. Raises ``BadRequest`` for what is no id, ``NotFound`` for one that the hub does not know,
    ``Forbidden`` for one that it does not give to everybody, and ``HubUnavailable``.
    """
    named = _ID.fullmatch(checkpoint)
    if named is None:
        raise BadRequest(f"{checkpoint} is no id of the Hugging Face hub such as Qwen/Qwen2.5-VL-7B-Instruct")
    id, revision = named.groups()
    client = _hub_client()
    try:
        found = Path(client.snapshot_download(id, revision=revision, allow_patterns=list(_METADATA_PATTERNS)))
        client.snapshot_download(id, revision=revision, allow_patterns=[*_METADATA_PATTERNS, *_weight_files(found)])
    except Exception as error:  # the client's own errors and those of the HTTP library that it happens to use
        raise _hub_error(checkpoint, error) from error
    return found


def _cached_directory(checkpoint: str) -> Path | None:
    named = _ID.fullmatch(checkpoint)
    id, revision = named.groups() if named else ("", None)
    client = _hub_client()
    for kind in _CONFIG_FILES:
        found = client.try_to_load_from_cache(id, kind, revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def _weight_files(directory: Path) -> list[str]:
    """The files of weights that the configurations in ``directory`` ask for: a repository may have more."""
    if (directory / adapters.CONFIG_FILE).exists():
        return [adapters.WEIGHTS_FILE]
    parts = ["", *(f"{part}/" for part in _pipeline_parts(directory))]
    return [f"{part}{name}" for part in parts for name in safetensors.weight_file_names(directory / part)]


def _pipeline_parts(directory: Path) -> list[str]:
    """The directories of a pipeline."""
    index = directory / _CONFIG_FILES[0]
    if not index.exists():
        return []
    found: dict[str, Any] = json.loads(index.read_text())
    return [name for name, kind in found.items() if isinstance(kind, list) and kind[0] is not None]


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
            f"{checkpoint} is not for everybody: accept its terms on the hub, then set HF_TOKEN to a token of yours"
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        return NotFound(
            f"the Hugging Face hub has no {checkpoint}; if it is private, set HF_TOKEN to a token that may read it"
        )
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return HubUnavailable(f"{checkpoint} was not downloaded: {lines[0]}")
