"""Recognition of an image's contents from its pixels, without a model."""

import numpy as np

from omnibus_models.world.scenes import COLOURS, ShapeScene

_MAX_TIP_RATIO = 0.55  # largest width of the top of a triangle, relative to its bottom
_MIN_CORNER_SHARE = 0.5  # least share of its corners that a square fills; a circle fills a fifth
_MIN_COLOUR_SHARE = 0.8  # least share of pixels that have, or are close to, one of the two colours
_MAX_COLOUR_DISTANCE = 80.0
_MIN_SHAPE_SHARE = 0.004  # of all pixels: anything smaller is not a shape
_CENTRE_TOLERANCE = 0.12  # of the side: distance from the middle that counts as another place


def recognize_scene(picture: np.ndarray) -> ShapeScene | None:
    """Return the scene in ``picture``, uint8 [H, W, 3], or None if unknown."""
    colours = picture[..., :3].astype(float)
    border = np.concatenate([colours[0], colours[-1], colours[:, 0], colours[:, -1]])
    ground = _colour_name(np.median(border, 0))
    names = _nearest_colour(colours)
    colour_counts = [(int((names == index).sum()), name) for index, name in enumerate(COLOURS) if name != ground]
    most, colour = max(colour_counts)
    if most < _MIN_SHAPE_SHARE * names.size:
        return None
    if _colour_share(colours, ground, colour) < _MIN_COLOUR_SHARE:
        return None
    mask = _figure_mask(colours, ground, colour)
    runs = _column_runs(mask.sum(0) >= 2)
    if not 1 <= len(runs) <= 3:
        return None
    if not (mask.sum(1) >= 2).any():
        return None
    first, last = max(runs, key=lambda run: run[1] - run[0])
    shape = _classify_shape(mask[:, first:last])
    return ShapeScene(len(runs), colour, shape, _classify_place(mask) if len(runs) == 1 else "middle", ground)


def _colour_name(colour: np.ndarray) -> str:
    return tuple(COLOURS)[int(_nearest_colour(colour))]


def _nearest_colour(colours: np.ndarray) -> np.ndarray:
    """Return the index of the nearest named colour, [...] of [..., 3]."""
    table = np.array(list(COLOURS.values()), float)
    nearest: np.ndarray = ((colours[..., None, :] - table) ** 2).sum(-1).argmin(-1)
    return nearest


def _colour_share(colours: np.ndarray, *names: str) -> float:
    """Return the share of pixels that have one of the colours ``names``."""
    table = np.array([COLOURS[name] for name in names], float)
    return float((np.linalg.norm(colours[..., None, :] - table, axis=-1).min(-1) < _MAX_COLOUR_DISTANCE).mean())


def _figure_mask(colours: np.ndarray, ground: str, figure: str) -> np.ndarray:
    """Return the mask of pixels closer to ``figure``, bool [H, W]."""
    low, high = np.array(COLOURS[ground], float), np.array(COLOURS[figure], float)
    mask: np.ndarray = (colours - low) @ (high - low) > 0.5 * ((high - low) ** 2).sum()
    return mask


def _column_runs(columns: np.ndarray) -> list[tuple[int, int]]:
    """Return begin and end of each run of at least three columns."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], columns.astype(int), [0]])))
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True) if end - begin >= 3]


def _classify_shape(mask: np.ndarray) -> str:
    rows, columns = np.flatnonzero(mask.sum(1) >= 2), np.flatnonzero(mask.sum(0) >= 2)
    box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(float)
    high, wide = (max(1, side // 5) for side in box.shape)
    tops, bottoms = box[:high], box[-high:]
    if box[: 2 * high].mean() < _MAX_TIP_RATIO * box[-2 * high :].mean():
        return "triangle"
    corners = np.mean([edge[:, part].mean() for edge in (tops, bottoms) for part in (slice(wide), slice(-wide, None))])
    return "square" if corners > _MIN_CORNER_SHARE else "circle"


def _classify_place(mask: np.ndarray) -> str:
    y, x = (float(indices.mean()) / side - 0.5 for indices, side in zip(np.nonzero(mask), mask.shape, strict=True))
    if max(abs(x), abs(y)) < _CENTRE_TOLERANCE:
        return "middle"
    if abs(x) > abs(y):
        return "left" if x < 0 else "right"
    return "top" if y < 0 else "bottom"
