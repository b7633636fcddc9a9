"""LLaVA-NeXT: pictures in tiles by their aspect ratio (``LlavaNextForConditionalGeneration``)."""

from omnibus_models.families import _plain


class LlavaNext(_plain.Family):
    """See ``contract.Family``."""

    name = "llava_next"
    architecture = "LlavaNextForConditionalGeneration"
    encoder = _plain.TilingEncoder


FAMILY = LlavaNext()
