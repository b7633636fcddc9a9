"""Colours of what a decoder makes: how pictures become bytes, and what a few painted ones tell of all others."""

from collections.abc import Callable

import torch
from torch import Tensor

#: Latents on a side of the pictures that tell a decoder's colours, and how many there are.
SIDE_LATENTS, IMAGE_COUNT = 8, 16


def to_bytes(colours: Tensor) -> Tensor:
    """Colours in [0, 1] as uint8."""
    return (colours.clamp(0, 1) * 255).round().to(torch.uint8)


def append_constant(latents: Tensor) -> Tensor:
    """[..., channels] to [..., channels + 1]: the last one stands for the colour of nothing."""
    return torch.cat([latents, latents.new_ones(*latents.shape[:-1], 1)], -1)


def fit_palette(latents: Tensor, painted: Tensor) -> Tensor:
    """[channels + 1, 3]: the colour that each latent adds, and that of nothing.

    ``latents`` [B, rows, columns, channels] were ``painted`` [B, 3, H, W]; each is taken for the mean of its pixels.
    """
    _, rows, columns, _ = latents.shape
    colours = torch.nn.functional.adaptive_avg_pool2d(painted.float().cpu(), (rows, columns))
    known = append_constant(latents.float().cpu()).flatten(0, 2)
    found: Tensor = torch.linalg.lstsq(known, colours.permute(0, 2, 3, 1).flatten(0, 2)).solution
    return found


def fit_surface_colours(channels: int, paint: Callable[[Tensor], Tensor]) -> Tensor:
    """Fit the colours of plain surfaces, as ``fit_palette`` does.

    ``paint`` makes colours [B, 3, H, W] of latents [B, channels, 1, rows, columns].
    """
    drawn = torch.randn(max(64, 2 * channels), channels, generator=torch.Generator().manual_seed(0))
    surfaces = drawn[:, :, None, None, None].expand(-1, -1, 1, SIDE_LATENTS // 2, SIDE_LATENTS // 2)
    return fit_palette(surfaces[:, :, 0].permute(0, 2, 3, 1), paint(surfaces))


def render_preview(plane: Tensor, palette: Tensor) -> Tensor:
    """Latents [channels, rows, columns] as a small picture, uint8 [rows, columns, 3]."""
    return to_bytes(append_constant(plane.float().cpu().permute(1, 2, 0)) @ palette)
