"""GLM-Image: a prior draws a picture in tokens, and a diffusion transformer follows it."""

from omnibus.known._shape import following

FAMILY = following("glm-image-tiny")
