"""Model families by their components, and their default deployments."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from hashlib import blake2b
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.families import plugins
from omnibus.families.specs import KNOWN
from omnibus.families.templates import FamilyDeclaration, VideoLimits, prefill_decode_options
from omnibus.suggestions import did_you_mean

#: The family of models that apps bring: unit tasks with their own engines.
PYTHON = "python"

#: The halves of a language model, and the kinds of their unit tasks.
SPLIT = {"prefill": "prefill", "decode": "decode"}

#: A language model that embeds texts, the kind of its unit task, and the option that runs it.
EMBED = {"embedder": "embed"}
EMBEDS: dict[str, dict[str, Any]] = {"B": {"components": ["embedder"], "service": "encoder"}}

#: Kinds of the unit tasks of language models that chat, and of those that generate images.
CHATTING = frozenset({"think", *SPLIT.values()})
PAINTING = frozenset(
    {"text-encode", "encode-frame", "prior", "denoise", "decode-image", "decode-video", "decode-audio"}
)

#: Kind of output of each kind of unit task that is the last one.
_OUTPUT_KINDS = {
    "think": "text",
    "vocode": "speech",
    "synthesize": "speech",
    "decode-image": "image",
    "decode-video": "video",
    "decode-audio": "sound",
    "embed": "embedding",
    "rerank": "score",
    "transcribe": "transcript",
}

#: Components in the order in which data flows, the component that encodes each modality, and the kind of
#: unit task that runs each component. A language model may be declared as ``prefill`` and ``decode`` in the place
#: of ``thinker``.
FAMILIES: dict[str, dict[str, Any]] = {
    name: {
        "components": list(known.components),
        "encoders": dict(known.encoders),
        "tasks": dict(known.tasks),
        **({"voices": list(known.voices)} if known.voices else {}),
    }
    for name, known in KNOWN.items()
}

#: Deployment options and the shares of the paths through them.
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    name: {"options": dict(known.options), "paths": list(known.paths)} for name, known in KNOWN.items()
}

#: More options, for models that are declared in these components; see ``split``.
HALVES: dict[str, dict[str, Any]] = prefill_decode_options()

#: The tiny models that run anywhere: name to family.
TINY = {KNOWN[name].tiny: name for name in ("qwen2_5_vl", "qwen2_5_omni")}

#: Tiny models that run on request.
ON_DEMAND_MODELS = {known.tiny: name for name, known in KNOWN.items() if known.tiny not in TINY}

#: Small models trained on a world of coloured shapes and tones: name to family. They run on request.
WORLD = {"qwen2.5-omni-world": "qwen2_5_omni", "qwen-image-world": "qwen_image"}

#: Defaults of the trained model that generates images; see ``omnibus.model_defaults.ImageDefaults``.
WORLD_IMAGE_DEFAULTS = {"qwen-image-world": {"width": 64, "height": 64, "steps": 8, "guidance": 2.0}}

#: Further tiny models that run on request, and the tiny model whose encoder each of them shares.
TWINS = {"qwen2.5-vl-tiny-b": "qwen2.5-vl-tiny", "gemma3-tiny-b": "gemma3-tiny"}

#: Twins that are larger than the model they share with: sizes of one family with the same encoder.
LARGER_TWINS = frozenset({"gemma3-tiny-b"})

_RANDOM = {**TINY, **ON_DEMAND_MODELS}

#: All models that need no checkpoint of yours: name to family.
LOCAL = {**_RANDOM, **{name: _RANDOM[shared] for name, shared in TWINS.items()}, **WORLD}


def find_family(name: str) -> dict[str, Any]:
    """Return the family ``name`` with the fields of ``plugins.PluginFamily``.

    It is built in or from a plugin. Raises ``BadRequest`` with the names of all families.
    """
    if name in FAMILIES:
        declaration = KNOWN[name]
        return {
            "voices": [],
            "composite": declaration.composite,
            "engine": declaration.engine,
            "video_limits": declaration.video_limits,
            "audio_window_seconds": declaration.audio_window_seconds,
            **FAMILIES[name],
            **DEPLOYMENTS[name],
            "tasks": {**declaration.tasks, **SPLIT, **EMBED},
            "options": {
                **_prefill_decode_options(declaration),
                **_embedding_options(declaration),
                **declaration.more,
                **declaration.options,
            },
        }
    plugin = plugins.find_family(name) if name != PYTHON else None
    if plugin is None:
        names = {*FAMILIES, *plugins.family_names()} - {PYTHON}
        raise BadRequest(
            f"there is no model family {name!r}; there is {plugins.join_names(names)}{did_you_mean(name, names)}"
        )
    return plugin


def find_video_limits(name: str) -> VideoLimits | None:
    """Return the limits on videos of the family ``name``, or None. Raises as ``find_family``."""
    limits: VideoLimits | None = find_family(name)["video_limits"] if name != PYTHON else None
    return limits


def find_audio_window(name: str) -> float:
    """Return the attention window of a family's audio encoder in seconds.

    It is 0 if the encoder attends to the whole audio. Raises as ``find_family``.
    """
    return float(find_family(name)["audio_window_seconds"]) if name != PYTHON else 0.0


def component_chains(components: Sequence[str], tasks: Mapping[str, str]) -> list[list[str]]:
    """Return ``components`` by output: those that chat, then those that generate images.

    A model that does not do both has one list for all. ``tasks`` has the kind of unit task of each component.
    """
    paint = [part for part in components if tasks.get(part) in PAINTING]
    chat = [part for part in components if part not in paint]
    has_both = paint and not CHATTING.isdisjoint(tasks.get(part, "") for part in chat)
    return [chat, paint] if has_both else [list(components)]


def input_kinds(family: Mapping[str, Any]) -> list[str]:
    """Return the kinds of input of a model of ``family``, from ``find_family()``."""
    kinds = [*family["encoders"]]
    if "transcriber" in family["components"]:
        return kinds
    # A model that edits images reads one without a named encoder: that image is not part of a chat.
    seeing = {part for part, kind in family["tasks"].items() if kind in ("encode", "encode-frame")}
    unnamed_encoders = seeing.intersection(family["components"]) - {*family["encoders"].values()}
    return ["text", *kinds, *(["image"] if unnamed_encoders and "image" not in kinds else [])]


def output_kinds(family: Mapping[str, Any]) -> list[str]:
    """Return the kinds of output of a model of ``family``, from ``find_family()``."""
    kinds = {family["tasks"].get(part) for part in family["components"]}
    return [word for kind, word in _OUTPUT_KINDS.items() if kind in kinds]


def code_origin(family: str, checkpoint: str) -> str:
    """Return an id of the version of an app's unit tasks, else "".

    It separates executors of two versions.
    """
    return blake2b(checkpoint.encode(), digest_size=8).hexdigest() if family == PYTHON else ""


def model_declaration(family: str, checkpoint: str) -> dict[str, Any]:
    """Return the usual declaration of a model, which the caller may change."""
    fields = deepcopy(FAMILIES[family])
    if KNOWN[family].modalities_by_checkpoint:
        del fields["encoders"]  # the planner reads them from the checkpoint
    return {"family": family, "checkpoint": checkpoint, **fields, **deepcopy(DEPLOYMENTS[family])}


def untrained_declaration(family: str, checkpoint: str) -> dict[str, Any]:
    """Return the usual declaration of an untrained (tiny or small-world) model.

    Its speech detector does not depend on a voice.
    """
    declaration = model_declaration(family, checkpoint)
    return {**declaration, **({"speech_detector": "energy"} if "audio" in declaration.get("encoders", ()) else {})}


def split_declaration(family: str, checkpoint: str, *paths: str) -> dict[str, Any]:
    """Return the declaration of a model split into prefill and decode.

    ``paths`` name their options, such as ``E>P>D``, ``EP>D``, ``ED>P``, ``E>PD`` or ``EPD``. A model that takes only
    text has ``P>D`` or ``PD``. Requests are shared evenly among the paths. A model that also generates images is
    declared without the components for that. Raises ``BadRequest`` for other options.
    """
    options = {**DEPLOYMENTS[family]["options"], **_prefill_decode_options(KNOWN[family])}
    split_paths = [path.split(">") for path in paths]
    if strange := {option for path in split_paths for option in path} - options.keys():
        raise BadRequest(f"{family} has no option {', '.join(sorted(strange))}; there is {', '.join(sorted(options))}")
    [usual, *_] = component_chains(FAMILIES[family]["components"], FAMILIES[family]["tasks"])
    return {
        "family": family,
        "checkpoint": checkpoint,
        "components": [part for each in usual for part in (SPLIT if each == "thinker" else [each])],
        "options": {name: options[name] for path in split_paths for name in path},
        "paths": [{"options": path, "share": 1} for path in split_paths],
    }


def embedding_declaration(family: str, checkpoint: str) -> dict[str, Any]:
    """Return the declaration of a model of ``family`` that only embeds texts."""
    return {
        "family": family,
        "checkpoint": checkpoint,
        "components": [*EMBED],
        "options": dict(EMBEDS),
        "paths": [{"options": [*EMBEDS], "share": 1}],
    }


def _embedding_options(declaration: FamilyDeclaration) -> dict[str, dict[str, Any]]:
    return EMBEDS if "thinker" in declaration.components else {}


def _prefill_decode_options(declaration: FamilyDeclaration) -> dict[str, dict[str, Any]]:
    """Return the options of ``HALVES`` whose components a family has.

    There are none without a language model.
    """
    parts = {*declaration.components, *SPLIT} if "thinker" in declaration.components else set()
    return {name: option for name, option in HALVES.items() if parts.issuperset(option["components"])}


def shared_encoder_declaration(name: str, checkpoint: str) -> dict[str, Any]:
    """Return the declaration of the tiny ``name``, with its twin's image encoder."""
    encoder_model = TWINS[name]
    return {
        "family": LOCAL[name],
        "checkpoint": checkpoint,
        "shares": {"vision": encoder_model},
        "options": {"L": {"components": ["thinker"], "service": "llm"}},
        "paths": [{"options": [f"{encoder_model}/E", "L"]}],
    }


class HostedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A component of some model, in an executor that runs components of several models (``executor.shared_process``).

    ``name`` is its name there. Its own model calls it ``component``, and gives ``family``, ``checkpoint``, ``engine``
    and ``context``, as settings of executors have them.
    """

    name: str
    component: str
    family: str
    checkpoint: str
    engine: str
    context: int = 0
