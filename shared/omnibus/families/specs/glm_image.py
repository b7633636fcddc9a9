"""GLM-Image: a prior draws a picture in tokens, and a diffusion transformer follows it."""

from omnibus.families.specs._templates import image_generation_with_prior

FAMILY = image_generation_with_prior("glm-image-tiny")
