"""InternVL3, as the library has it (``OpenGVLab/InternVL3-*-hf``)."""

from omnibus.families.specs._llava_style import towered

FAMILY = towered("internvl-tiny", "image", "video")
