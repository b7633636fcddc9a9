"""Qwen2.5-VL: a vision encoder and a language model (``Qwen2_5_VLForConditionalGeneration``)."""

from collections.abc import Mapping, Sequence
from typing import Any

from omnibus_models.contract import Encoded
from omnibus_models.families import _qwen, _qwen_vl


class Qwen25VlThinker(_qwen_vl.QwenVlThinker):
    """The language model of Qwen2.5-VL."""

    def _position_arguments(self, media: Sequence[Encoded]) -> Mapping[str, Any]:
        return {"second_per_grid_ts": _qwen.seconds_per_grid(media)}


class Qwen25VL(_qwen_vl.QwenVlFamily):
    """See ``contract.Family``."""

    name = "qwen2_5_vl"
    architecture = "Qwen2_5_VLForConditionalGeneration"
    thinker = Qwen25VlThinker


FAMILY = Qwen25VL()
