"""Qwen2-VL: a vision encoder and a language model (``Qwen2VLForConditionalGeneration``).

Frames of a video are one position apart, however far apart in time they are.
"""

from omnibus_models.families import _qwen_vl


class Qwen2VL(_qwen_vl.QwenVlFamily):
    """See ``contract.Family``."""

    name = "qwen2_vl"
    architecture = "Qwen2VLForConditionalGeneration"


FAMILY = Qwen2VL()
