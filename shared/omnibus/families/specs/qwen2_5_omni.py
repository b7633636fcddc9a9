"""Qwen2.5-Omni."""

from omnibus.families.specs._templates import omni_model

FAMILY = omni_model(
    "qwen2.5-omni-tiny",
    ["Chelsie", "Ethan"],
    weights={
        "vision": ("thinker.visual.",),
        "audio": ("thinker.audio_tower.",),
        "thinker": ("thinker.",),
        "talker": ("talker.",),
        "vocoder": ("token2wav.",),
    },
)
