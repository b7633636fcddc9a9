"""InternVL3, as the library has it (``OpenGVLab/InternVL3-*-hf``)."""

from omnibus.known._plain import towered

FAMILY = towered("internvl-tiny", "image", "video")
