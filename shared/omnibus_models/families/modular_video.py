"""Videos by any pipeline that diffusers has in blocks."""

from omnibus_models.families._modular_family import ModularFamily

FAMILY = ModularFamily("modular_video")
