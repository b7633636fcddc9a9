"""Scenes: their contents, captions and images."""

import functools
import hashlib
import io
import itertools
from dataclasses import dataclass

import numpy as np

#: Colours by name.
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 70),
    "blue": (45, 80, 220),
    "yellow": (240, 210, 50),
    "white": (245, 245, 245),
    "black": (15, 15, 15),
}
SHAPES = ("square", "circle", "triangle")
COUNTS = ("one", "two", "three")
#: Where a single shape may be. Several ones stand in a row.
PLACES = ("middle", "left", "right", "top", "bottom")
SIDE = 64  # pixels
#: How far images differ from the plainest ones of their scenes.
WILD = 0.5

_SHARPNESS = 4  # each pixel is the mean of so many by so many
_SHADES, _GRAIN = 12.0, 4.0  # how far colours may be off, and pixels
_CENTRES = {"middle": (32, 32), "left": (17, 32), "right": (47, 32), "top": (32, 17), "bottom": (32, 47)}
_ROWS: dict[int, tuple[int, ...]] = {2: (18, 46), 3: (12, 32, 52)}
#: Least and largest radius by the number of shapes, in pixels.
_RADII = {1: (10.0, 14.0), 2: (9.0, 12.0), 3: (7.0, 9.0)}
_HELD_OUT_COUNT = 8  # of 64 scenes no training ever sees


@dataclass(frozen=True)
class ShapeScene:
    """``count`` equal shapes of one colour on a ground of another one."""

    count: int
    colour: str
    shape: str
    place: str
    ground: str

    @property
    def caption(self) -> str:
        """The scene in words; with a place only if it is not the middle."""
        many = self.count > 1
        number = COUNTS[self.count - 1] if many else "a"
        text = f"{number} {self.colour} {self.shape}{'s' if many else ''} on {self.ground}"
        return text if self.place == "middle" else f"{text} at the {self.place}"

    @property
    def is_held_out(self) -> bool:
        """True if training excludes this scene, which depends only on its words."""
        return hashlib.blake2b(self.caption.encode(), digest_size=1).digest()[0] % 64 < _HELD_OUT_COUNT


@functools.cache
def all_scenes() -> tuple[ShapeScene, ...]:
    """Return all scenes."""
    kinds = [(1, place) for place in PLACES] + [(2, "middle"), (3, "middle")]
    return tuple(
        ShapeScene(count, colour, shape, place, ground)
        for (count, place), shape, (colour, ground) in itertools.product(
            kinds, SHAPES, itertools.permutations(COLOURS, 2)
        )
    )


@functools.cache
def training_scenes() -> tuple[ShapeScene, ...]:
    """Return the scenes of the training."""
    return tuple(scene for scene in all_scenes() if not scene.is_held_out)


@functools.cache
def held_out_scenes() -> tuple[ShapeScene, ...]:
    """Return the scenes of the tests.

    Rows of three are not among them: they are learnt, but not well enough.
    """
    return tuple(scene for scene in all_scenes() if scene.is_held_out and scene.count < len(COUNTS))


def scene_of_caption(caption: str) -> ShapeScene | None:
    """Return the scene with this caption, or None."""
    return _by_caption().get(caption.strip())


@functools.cache
def _by_caption() -> dict[str, ShapeScene]:
    return {scene.caption: scene for scene in all_scenes()}


def draw_scene(scene: ShapeScene, random: np.random.Generator, wild: float = WILD) -> np.ndarray:
    """Draw an image of ``scene``, uint8 [64, 64, 3].

    Places, sizes and colours differ between images, the more the nearer ``wild`` is to 1; 0 draws the plainest.
    """
    low, high = _RADII[scene.count]
    radius = (low + high) / 2 + wild * random.uniform(-1, 1) * (high - low) / 2
    mask = np.zeros((SIDE, SIDE))
    across, down = wild * random.uniform(-3, 3, 2)
    for x, y in _shape_centres(scene):
        mask = np.maximum(mask, _shape_mask(scene.shape, x + across, y + down, radius))
    shades = wild * random.uniform(-_SHADES, _SHADES, (2, 3))
    ground, figure = (
        np.array(COLOURS[name]) + shade for name, shade in zip((scene.ground, scene.colour), shades, strict=True)
    )
    picture = ground + mask[..., None] * (figure - ground)
    picture += wild * random.uniform(0, _GRAIN) * random.standard_normal(picture.shape)
    return picture.clip(0, 255).round().astype(np.uint8)


def encode_png(picture: np.ndarray) -> bytes:
    """Encode ``picture`` as a PNG file."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return out.getvalue()


def _shape_centres(scene: ShapeScene) -> list[tuple[int, int]]:
    if scene.count == 1:
        return [_CENTRES[scene.place]]
    return [(x, SIDE // 2) for x in _ROWS[scene.count]]


def _shape_mask(shape: str, x: float, y: float, radius: float) -> np.ndarray:
    """Return the share of each pixel that the shape covers, float [64, 64]."""
    points = (np.arange(SIDE * _SHARPNESS) + 0.5) / _SHARPNESS
    dx, dy = points[None, :] - x, points[:, None] - y
    match shape:
        case "square":
            inside = np.maximum(np.abs(dx), np.abs(dy)) <= 0.9 * radius
        case "circle":
            inside = dx**2 + dy**2 <= radius**2
        case _:
            # A triangle that stands on its base, from its tip down.
            depth = (dy + 1.1 * radius) / (1.9 * radius)
            inside = (depth >= 0) & (depth <= 1) & (np.abs(dx) <= 1.1 * radius * depth)
    return inside.reshape(SIDE, _SHARPNESS, SIDE, _SHARPNESS).mean((1, 3))
