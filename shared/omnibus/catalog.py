"""Model families by their components, and how each is deployed when nobody says otherwise. Data only."""

from typing import Any

#: Components in the order in which data flows, and the component that encodes each modality.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "components": ["vision", "thinker"],
        "encoders": {"image": "vision", "video": "vision"},
    },
    "qwen2_5_omni": {
        "components": ["vision", "audio", "thinker", "talker", "vocoder"],
        "encoders": {"image": "vision", "video": "vision", "audio": "audio"},
        "voices": ["Chelsie", "Ethan"],
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
        "paths": [{"options": ["E", "L"], "share": 70}, {"options": ["EL"], "share": 30}],
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
}

#: The tiny models that run anywhere: name to family.
TINY = {"qwen2.5-vl-tiny": "qwen2_5_vl", "qwen2.5-omni-tiny": "qwen2_5_omni"}


def declaration(family: str, checkpoint: str) -> dict[str, Any]:
    """The usual declaration of a model of ``family`` at ``checkpoint``."""
    return {"family": family, "checkpoint": checkpoint, **FAMILIES[family], **DEPLOYMENTS[family]}
