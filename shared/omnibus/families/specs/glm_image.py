"""GLM-Image: a prior draws a picture in tokens, and a diffusion transformer follows it."""

from omnibus.families.specs._templates import following

FAMILY = following("glm-image-tiny")
