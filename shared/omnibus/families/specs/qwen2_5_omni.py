"""Qwen2.5-Omni."""

from omnibus.families.specs._templates import speaking

FAMILY = speaking(
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
