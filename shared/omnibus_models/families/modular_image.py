"""Images by any pipeline that diffusers has in blocks."""

from omnibus_models.modular.family import ModularFamily

FAMILY = ModularFamily("modular_image")
