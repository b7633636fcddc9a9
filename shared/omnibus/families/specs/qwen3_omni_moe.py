"""Qwen3-Omni."""

from omnibus.families.specs._templates import omni_model

FAMILY = omni_model(
    "qwen3-omni-tiny",
    ["Aiden", "Chelsie", "Ethan"],
    weights={
        "vision": ("thinker.visual.",),
        "audio": ("thinker.audio_tower.",),
        "thinker": ("thinker.",),
        "talker": ("talker.",),
        "vocoder": ("code2wav.",),
    },
)
