"""Qwen2-VL: a vision encoder and a language model (``Qwen2VLForConditionalGeneration``).

Frames of a video are one position apart, however far apart in time they are.
"""

from omnibus_models.families._qwen_vl import VisionLanguage

FAMILY = VisionLanguage("qwen2_vl", "Qwen2VLForConditionalGeneration")
