"""InternVL3, as the library has it (``OpenGVLab/InternVL3-*-hf``)."""

from omnibus.families.specs._llava_style import vision_tower_model

FAMILY = vision_tower_model("internvl-tiny", "image", "video")
