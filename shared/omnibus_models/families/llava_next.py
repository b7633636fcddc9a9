"""LLaVA-NeXT: images in tiles by their aspect ratio (``LlavaNextForConditionalGeneration``)."""

from omnibus_models.families import _llava_style


class LlavaNext(_llava_style.TowerFamily):
    """See ``contract.ModelFamily``."""

    name = "llava_next"
    architecture = "LlavaNextForConditionalGeneration"
    encoder = _llava_style.TilingEncoder


FAMILY = LlavaNext()
