"""Colours of decoders: conversion to bytes, and palettes fitted to a few decoded images."""

from collections.abc import Callable

import torch
from torch import Tensor

#: Latents on a side of the images that a palette is fitted to, and the number of images.
SIDE_LATENTS, IMAGE_COUNT = 8, 16


def to_bytes(colours: Tensor) -> Tensor:
    """Convert colours in [0, 1] to uint8."""
    return (colours.clamp(0, 1) * 255).round().to(torch.uint8)


def append_constant(latents: Tensor) -> Tensor:
    """Extend [..., channels] to [..., channels + 1]: the last one is 1, for the base colour."""
    return torch.cat([latents, latents.new_ones(*latents.shape[:-1], 1)], -1)


def fit_palette(latents: Tensor, images: Tensor) -> Tensor:
    """Return [channels + 1, 3]: the colour that each latent adds, and the base colour.

    ``latents`` [B, rows, columns, channels] were ``images`` [B, 3, H, W]. Each is compared with the mean of its
    pixels.
    """
    _, rows, columns, _ = latents.shape
    colours = torch.nn.functional.adaptive_avg_pool2d(images.float().cpu(), (rows, columns))
    design = append_constant(latents.float().cpu()).flatten(0, 2)
    palette: Tensor = torch.linalg.lstsq(design, colours.permute(0, 2, 3, 1).flatten(0, 2)).solution
    return palette


def fit_surface_colours(channels: int, paint: Callable[[Tensor], Tensor]) -> Tensor:
    """Fit the colours of plain surfaces, as ``fit_palette`` does.

    ``paint`` decodes latents [B, channels, 1, rows, columns] to colours [B, 3, H, W].
    """
    samples = torch.randn(max(64, 2 * channels), channels, generator=torch.Generator().manual_seed(0))
    surfaces = samples[:, :, None, None, None].expand(-1, -1, 1, SIDE_LATENTS // 2, SIDE_LATENTS // 2)
    return fit_palette(surfaces[:, :, 0].permute(0, 2, 3, 1), paint(surfaces))


def render_preview(plane: Tensor, palette: Tensor) -> Tensor:
    """Render latents [channels, rows, columns] as a small image, uint8 [rows, columns, 3]."""
    return to_bytes(append_constant(plane.float().cpu().permute(1, 2, 0)) @ palette)
