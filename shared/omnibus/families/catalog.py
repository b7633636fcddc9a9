"""Model families by their components, and how each is deployed when nobody says otherwise."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from hashlib import blake2b
from typing import Any

from omnibus.errors import BadRequest
from omnibus.families import plugins
from omnibus.families.specs import KNOWN
from omnibus.families.templates import FamilyDeclaration, prefill_decode_options
from omnibus.families.video_limits import VideoLimits
from omnibus.suggestions import did_you_mean

#: The family of models that apps bring: unit tasks with an engine of their own.
PYTHON = "python"

#: The halves of a language model, and the kinds of their unit tasks.
SPLIT = {"prefill": "prefill", "decode": "decode"}

#: A language model that makes vectors of texts, the kind of its unit task, and the option that runs it.
EMBED = {"embedder": "embed"}
EMBEDS: dict[str, dict[str, Any]] = {"B": {"components": ["embedder"], "service": "encoder"}}

#: Kinds of the unit tasks of language models that chat, and of those that make pictures.
CHATTING = frozenset({"think", *SPLIT.values()})
PAINTING = frozenset(
    {"text-encode", "encode-frame", "prior", "denoise", "decode-image", "decode-video", "decode-audio"}
)

#: What comes out of each kind of unit task that is the last one.
_OUTPUT_KINDS = {
    "think": "text",
    "vocode": "speech",
    "decode-image": "image",
    "decode-video": "video",
    "decode-audio": "sound",
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

#: Tiny models that run when somebody asks for them.
ON_DEMAND_MODELS = {known.tiny: name for name, known in KNOWN.items() if known.tiny not in TINY}

#: Small models that were trained, and know a world of coloured shapes and tones: name to family. They run when
#: somebody asks for them.
WORLD = {"qwen2.5-omni-world": "qwen2_5_omni", "qwen-image-world": "qwen_image"}

#: What suits the trained model that draws; see ``omnibus.plan.ImageDefaults``.
WORLD_IMAGE_DEFAULTS = {"qwen-image-world": {"width": 64, "height": 64, "steps": 8, "guidance": 2.0}}

#: Tiny models that run when somebody asks for them as well, and the tiny model whose encoder each of them shares.
TWINS = {"qwen2.5-vl-tiny-b": "qwen2.5-vl-tiny", "gemma3-tiny-b": "gemma3-tiny"}

#: Twins that are also larger than who they share with: sizes of one family, whose encoder is the same.
LARGER_TWINS = frozenset({"gemma3-tiny-b"})

_RANDOM = {**TINY, **ON_DEMAND_MODELS}

#: All models that need no checkpoint of yours: name to family.
LOCAL = {**_RANDOM, **{name: _RANDOM[shared] for name, shared in TWINS.items()}, **WORLD}


def find_family(name: str) -> dict[str, Any]:
    """The family ``name``, built in or from a plugin, with the fields of ``plugins.Family``.

    Raises ``BadRequest`` that names the families there are.
    """
    if name in FAMILIES:
        known = KNOWN[name]
        return {
            "voices": [],
            "composite": known.composite,
            "engine": known.engine,
            "video_limits": known.video_limits,
            "audio_window_seconds": known.audio_window_seconds,
            **FAMILIES[name],
            **DEPLOYMENTS[name],
            "tasks": {**known.tasks, **SPLIT, **EMBED},
            "options": {**_prefill_decode_options(known), **_embedding_options(known), **known.more, **known.options},
        }
    found = plugins.find_family(name) if name != PYTHON else None
    if found is None:
        names = {*FAMILIES, *plugins.family_names()} - {PYTHON}
        raise BadRequest(
            f"there is no model family {name!r}; there is {plugins.join_names(names)}{did_you_mean(name, names)}"
        )
    return found


def find_video_limits(name: str) -> VideoLimits | None:
    """The limits on videos of the family ``name``; None where none are known. Raises as ``find_family``."""
    limits: VideoLimits | None = find_family(name)["video_limits"] if name != PYTHON else None
    return limits


def find_audio_window(name: str) -> float:
    """Seconds of the windows within which the audio encoder of the family ``name`` attends; 0 where it attends to all
    of a sound. Raises as ``find_family``."""
    return float(find_family(name)["audio_window_seconds"]) if name != PYTHON else 0.0


def component_chains(components: Sequence[str], tasks: Mapping[str, str]) -> list[list[str]]:
    """``components`` by what requests ask for: those that chat, then those that make pictures; one list for all of a
    model that does not do both. ``tasks`` says the kind of the unit task of each component.
    """
    paint = [part for part in components if tasks.get(part) in PAINTING]
    chat = [part for part in components if part not in paint]
    both = paint and not CHATTING.isdisjoint(tasks.get(part, "") for part in chat)
    return [chat, paint] if both else [list(components)]


def input_kinds(family: Mapping[str, Any]) -> list[str]:
    """Return the kinds of input of a model of ``family``, which has the fields of ``family()``."""
    kinds = [*family["encoders"]]
    # Who edits sees a picture without being named an encoder of it: the picture is no part of a chat.
    seeing = {part for part, kind in family["tasks"].items() if kind in ("encode", "encode-frame")}
    unnamed = seeing.intersection(family["components"]) - {*family["encoders"].values()}
    return ["text", *kinds, *(["image"] if unnamed and "image" not in kinds else [])]


def output_kinds(family: Mapping[str, Any]) -> list[str]:
    """Return the kinds of output of a model of ``family``, which has the fields of ``family()``."""
    kinds = {family["tasks"].get(part) for part in family["components"]}
    return [word for kind, word in _OUTPUT_KINDS.items() if kind in kinds]


def code_origin(family: str, checkpoint: str) -> str:
    """Return an id that separates executors of two versions of an app's own unit tasks; empty for other families."""
    return blake2b(checkpoint.encode(), digest_size=8).hexdigest() if family == PYTHON else ""


def model_declaration(family: str, checkpoint: str) -> dict[str, Any]:
    """The usual declaration of a model of ``family`` at ``checkpoint``, for the caller to change."""
    return {"family": family, "checkpoint": checkpoint, **deepcopy(FAMILIES[family]), **deepcopy(DEPLOYMENTS[family])}


def untrained_declaration(family: str, checkpoint: str) -> dict[str, Any]:
    """The usual declaration of a model of ``family`` that knows no words, a tiny one or one of the small world: to hear
    it needs no voice."""
    detector = {"speech_detector": "energy"} if "audio" in FAMILIES[family]["encoders"] else {}
    return {**model_declaration(family, checkpoint), **detector}


def split_declaration(family: str, checkpoint: str, *paths: str) -> dict[str, Any]:
    """The declaration of a model of ``family`` whose language model runs as prefill and decode.

    ``paths`` name their options, for example ``E>P>D``, ``EP>D``, ``ED>P``, ``E>PD`` or ``EPD``, and ``P>D`` or ``PD``
    of a model that takes text alone; requests are shared evenly among them. A model that also makes pictures is
    declared without what makes them. Raises ``BadRequest`` for other options.
    """
    options = {**DEPLOYMENTS[family]["options"], **_prefill_decode_options(KNOWN[family])}
    named = [path.split(">") for path in paths]
    if strange := {option for path in named for option in path} - options.keys():
        raise BadRequest(f"{family} has no option {', '.join(sorted(strange))}; there is {', '.join(sorted(options))}")
    [usual, *_] = component_chains(FAMILIES[family]["components"], FAMILIES[family]["tasks"])
    return {
        "family": family,
        "checkpoint": checkpoint,
        "components": [part for each in usual for part in (SPLIT if each == "thinker" else [each])],
        "options": {name: options[name] for path in named for name in path},
        "paths": [{"options": path, "share": 1} for path in named],
    }


def embedding_declaration(family: str, checkpoint: str) -> dict[str, Any]:
    """The declaration of a model of ``family`` that makes vectors of texts, and nothing else."""
    return {
        "family": family,
        "checkpoint": checkpoint,
        "components": [*EMBED],
        "options": dict(EMBEDS),
        "paths": [{"options": [*EMBEDS], "share": 1}],
    }


def _embedding_options(known: FamilyDeclaration) -> dict[str, dict[str, Any]]:
    return EMBEDS if "thinker" in known.components else {}


def _prefill_decode_options(known: FamilyDeclaration) -> dict[str, dict[str, Any]]:
    """The options of ``HALVES`` whose components a family has; none without a language model."""
    parts = {*known.components, *SPLIT} if "thinker" in known.components else set()
    return {name: option for name, option in HALVES.items() if parts.issuperset(option["components"])}


def shared_encoder_declaration(name: str, checkpoint: str) -> dict[str, Any]:
    """The declaration of the tiny model ``name``, whose images are encoded by the model it shares with."""
    shared = TWINS[name]
    return {
        "family": LOCAL[name],
        "checkpoint": checkpoint,
        "shares": {"vision": shared},
        "options": {"L": {"components": ["thinker"], "service": "llm"}},
        "paths": [{"options": [f"{shared}/E", "L"]}],
    }
