"""Qwen2-VL: a vision encoder and a language model (``Qwen2VLForConditionalGeneration``).

Frames of a video are one position apart, at any distance in time.
"""

from omnibus_models.families import _qwen_vl


class Qwen2VL(_qwen_vl.QwenVlFamily):
    """See ``contract.ModelFamily``."""

    name = "qwen2_vl"
    architecture = "Qwen2VLForConditionalGeneration"


FAMILY = Qwen2VL()
