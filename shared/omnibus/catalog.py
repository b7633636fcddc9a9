"""Model families by their components, and how each is deployed when nobody says otherwise."""

from hashlib import blake2b
from typing import Any

from omnibus import plugins
from omnibus.errors import BadRequest

#: The family of models that apps bring: unit tasks with an engine of their own.
PYTHON = "python"

#: The halves of a language model, and the kinds of their unit tasks.
SPLIT = {"prefill": "prefill", "decode": "decode"}

#: Components in the order in which data flows, the component that encodes each modality, and the kind of
#: unit task that runs each component. A language model may be declared as ``prefill`` and ``decode`` in the place
#: of ``thinker``.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "components": ["vision", "thinker"],
        "encoders": {"image": "vision", "video": "vision"},
        "tasks": {"vision": "encode", "thinker": "think"},
    },
    "qwen2_5_omni": {
        "components": ["vision", "audio", "thinker", "talker", "vocoder"],
        "encoders": {"image": "vision", "video": "vision", "audio": "audio"},
        "tasks": {"vision": "encode", "audio": "encode", "thinker": "think", "talker": "talk", "vocoder": "vocode"},
        "voices": ["Chelsie", "Ethan"],
    },
    "qwen_image": {
        "components": ["text_encoder", "dit", "vae"],
        "encoders": {},
        "tasks": {"text_encoder": "text-encode", "dit": "denoise", "vae": "decode-image"},
    },
}

#: Deployment options and the shares of the paths through them.
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "options": {
            "E": {"components": ["vision"], "service": "encoder"},
            "L": {"components": ["thinker"], "service": "llm"},
            "EL": {"components": ["vision", "thinker"], "service": "llm"},
        },
        # The last path has no share of its own: it is there for apps that ask for it, and when L is away.
        "paths": [
            {"options": ["E", "L"], "share": 70},
            {"options": ["EL"], "share": 30},
            {"options": ["E", "EL"], "share": 0},
        ],
    },
    "qwen2_5_omni": {
        "options": {
            "EV": {"components": ["vision"], "service": "encoder"},
            "EA": {"components": ["audio"], "service": "encoder"},
            "Th": {"components": ["thinker"], "service": "llm"},
            "Ta": {"components": ["talker"], "service": "llm"},
            "V": {"components": ["vocoder"], "service": "generator"},
            "M": {"components": ["vision", "audio", "thinker", "talker", "vocoder"], "service": "llm"},
        },
        "paths": [{"options": ["EV", "EA", "Th", "Ta", "V"], "share": 80}, {"options": ["M"], "share": 20}],
    },
    "qwen_image": {
        "options": {
            "T": {"components": ["text_encoder"], "service": "encoder"},
            "D": {"components": ["dit"], "service": "generator"},
            "V": {"components": ["vae"], "service": "generator"},
            "TDV": {"components": ["text_encoder", "dit", "vae"], "service": "generator"},
        },
        "paths": [{"options": ["T", "D", "V"], "share": 80}, {"options": ["TDV"], "share": 20}],
    },
}

#: More options, for models that are declared in these components; see ``split``.
HALVES: dict[str, dict[str, Any]] = {
    "P": {"components": ["prefill"], "service": "llm"},
    "D": {"components": ["decode"], "service": "llm"},
    "EP": {"components": ["vision", "prefill"], "service": "llm"},
    "ED": {"components": ["vision", "decode"], "service": "llm"},
    "PD": {"components": ["prefill", "decode"], "service": "llm"},
    "EPD": {"components": ["vision", "prefill", "decode"], "service": "llm"},
}

#: More options of single families.
MORE: dict[str, dict[str, Any]] = {
    "qwen2_5_omni": {"Ta+V": {"components": ["talker", "vocoder"], "service": "llm"}},
}

#: The tiny models that run anywhere: name to family.
TINY = {"qwen2.5-vl-tiny": "qwen2_5_vl", "qwen2.5-omni-tiny": "qwen2_5_omni"}

#: Tiny models that run when somebody asks for them.
ASKED = {"qwen-image-tiny": "qwen_image"}

#: Tiny models that run when somebody asks for them as well, and the tiny model whose encoder each of them shares.
TWINS = {"qwen2.5-vl-tiny-b": "qwen2.5-vl-tiny"}


def family(name: str) -> dict[str, Any]:
    """The family ``name``, built in or from a plugin, with the fields of ``plugins.Family``.

    Raises ``BadRequest`` that names the families there are.
    """
    if name in FAMILIES:
        usual = {"voices": [], "composite": "", "engine": "", **FAMILIES[name], **DEPLOYMENTS[name]}
        return {
            **usual,
            "tasks": {**usual["tasks"], **SPLIT},
            "options": {**HALVES, **MORE.get(name, {}), **usual["options"]},
        }
    found = plugins.family(name) if name != PYTHON else None
    if found is None:
        known = {*FAMILIES, *plugins.families()} - {PYTHON}
        raise BadRequest(f"there is no model family {name!r}; there is {plugins.listed(known)}")
    return found


def origin(family: str, checkpoint: str) -> str:
    """What tells executors of one version of an app's own unit tasks from another's; empty for other families."""
    return blake2b(checkpoint.encode(), digest_size=8).hexdigest() if family == PYTHON else ""


def declaration(family: str, checkpoint: str) -> dict[str, Any]:
    """The usual declaration of a model of ``family`` at ``checkpoint``."""
    return {"family": family, "checkpoint": checkpoint, **FAMILIES[family], **DEPLOYMENTS[family]}


def split(family: str, checkpoint: str, *paths: str) -> dict[str, Any]:
    """The declaration of a model of ``family`` whose language model runs as prefill and decode.

    ``paths`` name their options, for example ``E>P>D``, ``EP>D``, ``ED>P``, ``E>PD`` or ``EPD``; requests are shared
    evenly among them.
    """
    options = {**HALVES, **DEPLOYMENTS[family]["options"]}
    named = [path.split(">") for path in paths]
    return {
        "family": family,
        "checkpoint": checkpoint,
        "components": [
            part for usual in FAMILIES[family]["components"] for part in (SPLIT if usual == "thinker" else [usual])
        ],
        "options": {name: options[name] for path in named for name in path},
        "paths": [{"options": path, "share": 1} for path in named],
    }


def twin(name: str, checkpoint: str) -> dict[str, Any]:
    """The declaration of the tiny model ``name``, whose images are encoded by the model it shares with."""
    shared = TWINS[name]
    return {
        "family": TINY[shared],
        "checkpoint": checkpoint,
        "shares": {"vision": shared},
        "options": {"L": {"components": ["thinker"], "service": "llm"}},
        "paths": [{"options": [f"{shared}/E", "L"]}],
    }
