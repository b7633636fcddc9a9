"""Qwen2.5-VL: a vision encoder and a language model (``Qwen2_5_VLForConditionalGeneration``)."""

from omnibus_models.families import _qwen_vl


class Qwen25VL(_qwen_vl.QwenVlFamily):
    """See ``contract.ModelFamily``."""

    name = "qwen2_5_vl"
    architecture = "Qwen2_5_VLForConditionalGeneration"


FAMILY = Qwen25VL()
