"""Identity of a component. Components with equal identities give the same outputs, so executors of one serve both.

The identity is read from a checkpoint's files without loading them. It consists of names, types, shapes and bytes of
the component's tensors. For an encoder, it includes the settings that change how it encodes media. Tensors that differ
in names or shapes are never read. Digests of bytes are kept (``omnibus.checkpoints.safetensors``), so a later start
does not read them again.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from omnibus.checkpoints.safetensors import StoredTensor, find_weight_files, read_stored_tensors, tensor_digests
from omnibus.errors import BadRequest

#: Prefixes of the fields of a configuration that change how an encoder encodes media.
_SETTING_PREFIXES = (
    *("vision_", "image_", "video_", "audio_", "mm_"),
    *("projector_", "multimodal_projector_", "downsample_"),
)
#: Suffixes of the fields for the places of media in a prompt. The language model has its own configuration for these.
_PLACE_SUFFIXES = ("_token_id", "_token_index")
#: Configurations of towers, of which an encoder uses its own.
_TOWERS = {"vision_config": "vision", "audio_config": "audio"}
#: Files with the settings of the preprocessing of media.
_PREPROCESSING_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
#: Fields that do not affect outputs: the type in memory is the executor's own setting.
_IGNORED = frozenset(
    {"dtype", "torch_dtype", "transformers_version", "_name_or_path", "attn_implementation", "_attn_implementation"}
    | {"chat_template", "processor_class", "auto_map", "initializer_range"}
)


class ComponentIdentity:
    """All properties that determine a component's outputs.

    ``tensors`` are by their names within the component, ``settings`` by file and field, as JSON. Reading the bytes
    raises ``OSError`` if a file was removed meanwhile.
    """

    def __init__(self, family: str, tensors: Mapping[str, StoredTensor], settings: Mapping[str, str]) -> None:
        self.family = family
        self.tensors = dict(tensors)
        self.settings = dict(settings)

    @cached_property
    def outline(self) -> str:
        """Digest of everything except the bytes, 32 hex digits. Identities with different outlines differ."""
        tensors = [[name, each.dtype, list(each.shape)] for name, each in sorted(self.tensors.items())]
        return _digest([self.family, tensors, sorted(self.settings.items())])

    @cached_property
    def digest(self) -> str:
        """Digest of everything, 32 hex digits. This reads the tensors' bytes unless their digests are kept."""
        return _digest([self.outline, sorted(self.contents.items())])

    @cached_property
    def contents(self) -> dict[str, str]:
        """Digest of each tensor's bytes by its name."""
        return tensor_digests(self.tensors)

    def first_difference(self, other: "ComponentIdentity") -> str:
        """Return the first difference from ``other``, empty for equal identities. The text calls the two sides "here"
        and "there"."""
        if self.family != other.family:
            return f"the family is {self.family} here and {other.family} there"
        for name in sorted(self.settings.keys() | other.settings.keys()):
            here, there = self.settings.get(name, "nothing"), other.settings.get(name, "nothing")
            if here != there:
                return f"{name} is {here} here and {there} there"
        for name in sorted(self.tensors.keys() ^ other.tensors.keys()):
            return f"the weight {name} is only {'here' if name in self.tensors else 'there'}"
        for name, tensor in sorted(self.tensors.items()):
            other_tensor = other.tensors[name]
            if (tensor.dtype, tensor.shape) != (other_tensor.dtype, other_tensor.shape):
                return f"the weight {name} is {tensor.describe()} here and {other_tensor.describe()} there"
        differing = sorted(name for name, content in self.contents.items() if other.contents[name] != content)
        if differing:
            return f"{len(differing)} of {len(self.contents)} weights have other values, {differing[0]} is the first"
        return ""


def read_identity(
    directory: Path, family: str, component: str, prefixes: Mapping[str, Sequence[str]], encodes: bool
) -> ComponentIdentity | None:
    """Return the identity of ``component`` in the checkpoint ``directory``, or None. None means that it cannot be read.

    ``prefixes`` are those of the names of each component's tensors; the longest match counts. ``encodes`` is True for
    an encoder, whose settings count. Headers and configurations are read, no weights.
    """
    if not prefixes.get(component) or not directory.is_dir():
        return None
    files, missing_files = find_weight_files(directory)
    if missing_files:
        return None
    try:
        tensors = {name: each for file in files for name, each in _component_tensors(file, component, prefixes)}
        settings = dict(_encoder_settings(directory, component)) if encodes else {}
    except (BadRequest, OSError, ValueError, LookupError, struct.error):  # the load reports the error
        return None
    return ComponentIdentity(family, tensors, settings) if tensors else None


def _component_tensors(
    file: Path, component: str, prefixes: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, StoredTensor]]:
    for name, tensor in read_stored_tensors(file).items():
        stem = _component_stem(name, component, prefixes)
        if stem is not None:
            yield name[len(stem) :], tensor


def _component_stem(name: str, component: str, prefixes: Mapping[str, Sequence[str]]) -> str | None:
    """Return the prefix by which ``name`` belongs to ``component``, or None."""
    fitting = [stem for stems in prefixes.values() for stem in stems if name.startswith(stem)]
    longest = max(fitting, key=len, default=None)
    return longest if longest in prefixes[component] else None


def _encoder_settings(directory: Path, component: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of an encoder as JSON, by file and field. These are fields of its configuration, and its
    preprocessing."""
    whole = _read_json(directory / "config.json")
    thinker = whole.get("thinker_config")
    for fields in (whole, thinker if isinstance(thinker, dict) else {}):
        for name, value in fields.items():
            if _TOWERS.get(name, component) == component and _is_setting(name):
                yield from _flatten(f"config.json: {name}", value)
    for file in _PREPROCESSING_FILES:
        yield from _flatten(f"{file}:", _read_json(directory / file))


def _is_setting(name: str) -> bool:
    return name.startswith(_SETTING_PREFIXES) and not name.endswith(_PLACE_SUFFIXES)


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of ``value`` one by one. A difference then has the name of its field."""
    if not isinstance(value, dict):
        yield name, json.dumps(value, sort_keys=True)
        return
    for field, each in value.items():
        if field not in _IGNORED:
            yield from _flatten(f"{name}{' ' if name.endswith(':') else '.'}{field}", each)


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text()) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()
