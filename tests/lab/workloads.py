"""Workloads of the lab: Azure-like requests with images, from published figures of the trace.

Half of the requests have images: two thirds of these one, most others a few, some up to 16 (figure 11). Arrivals are
burstier than Poisson. Texts and images are like those of ShareGPT-4o, with which ModServe is measured. Prompts are
short ("low text token count"; no figure is published). Images have a median side of 500 pixels, and one in twenty more
than 1,000 (section 3.2). Their tokens follow from the rule of the model's family. Sizes are lognormal.

The day's rates are read off the published plots of the Azure LMM trace of 2025 (Microsoft, CC-BY 4.0). They are per 7.5
minutes of 2024-10-18, with its burst of images.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import accumulate
from math import exp, log
from statistics import NormalDist
from typing import NamedTuple

from omnibus.executor.sim.distributions import Draw
from omnibus.families.image_tokens import image_tokens
from omnibus_planner.simulate.arrivals import Arrival
from tests.lab.world import MODEL

#: Number of images in a request with images, and the share of such requests.
_IMAGE_COUNTS = {1: 0.66, 2: 0.05, 3: 0.15, 4: 0.03, 5: 0.03, 8: 0.02, 10: 0.03, 16: 0.03}
#: Fraction of short gaps, and their factor on the mean: a coefficient of variation of 1.5.
_SHORT_GAPS, _SHORT_FACTOR = 0.6, 0.35
#: Median tokens of text and of answers, and their coefficients of variation.
_TEXT, _TEXT_VARIATION, _ANSWER, _ANSWER_VARIATION = 60.0, 1.0, 100.0, 0.8
#: Median pixels of an image's side, and standard deviations of the logarithms of its size and of width over height.
_IMAGE_SIDE, _SIDE_DEVIATION, _SHAPE_DEVIATION = 500.0, 0.45, 0.3
#: Number of images in a mean.
_MEAN_IMAGES = 4000


class ImageModel(NamedTuple):
    """Sizes of a model with images.

    The rule of ``family`` determines an image's tokens. With ``reads_images``, the language model reads them as a
    prompt.
    """

    family: str
    reads_images: bool

    @property
    def image_tokens(self) -> float:
        """Mean tokens of an image."""
        return _mean_image_tokens(self.family)


class TrafficMix(NamedTuple):
    """Req/s, the share of requests with images, and their mean number.

    A number of 0 means that of the trace, 2.6.
    """

    rate: float
    image_share: float = 0.48
    images: float = 0.0


def azure_like(model: ImageModel, mix: TrafficMix, seconds: float, seed: int = 1) -> Iterator[Arrival]:
    """Yield requests of ``mix`` for ``seconds``, with sizes of ``model``."""
    draw, at = Draw("azure", seed), 0.0
    while (at := at + _gap(draw, mix.rate)) < seconds:
        images = _image_count(draw, mix.images) if draw.uniform() < mix.image_share else 0
        yield Arrival(at, MODEL, "image+thinker" if images else "thinker", _sizes(draw, model, images))


def usual_sizes(model: ImageModel, images: int) -> Mapping[str, float]:
    """Return the mean sizes of a request."""
    return _build_sizes(model, images, images * model.image_tokens, _TEXT, _ANSWER)


def mean_images(mean: float = 0.0) -> float:
    """Return the mean number of images in a request with images."""
    return mean or sum(count * share for count, share in _IMAGE_COUNTS.items())


def _gap(draw: Draw, rate: float) -> float:
    """Return the seconds to the next request: many short gaps, some long ones."""
    short = draw.uniform() < _SHORT_GAPS
    factor = _SHORT_FACTOR if short else (1 - _SHORT_GAPS * _SHORT_FACTOR) / (1 - _SHORT_GAPS)
    return -log(draw.uniform()) * factor / rate


def _image_count(draw: Draw, mean: float) -> int:
    if mean:  # geometric around the mean of a minute of the day, at most 16
        return min(16, 1 + int(log(draw.uniform()) / log(1 - 1 / max(1.0001, mean))))
    marks = list(accumulate(_IMAGE_COUNTS.values()))
    at = draw.uniform() * marks[-1]
    return next(count for count, mark in zip(_IMAGE_COUNTS, marks, strict=True) if at < mark)


def _sizes(draw: Draw, model: ImageModel, images: int) -> dict[str, float]:
    text = _TEXT * draw.lognormal(_TEXT_VARIATION)
    answer = max(1.0, _ANSWER * draw.lognormal(_ANSWER_VARIATION))
    return _build_sizes(model, images, sum(_image_tokens(draw, model.family) for _ in range(images)), text, answer)


def _build_sizes(model: ImageModel, images: int, tokens: float, text: float, answer: float) -> dict[str, float]:
    sizes = {"prompt_tokens": text + (tokens if model.reads_images else 0.0), "completion_tokens": answer}
    return sizes | ({"image_tokens": tokens, "images": float(images)} if images else {})


def _image_tokens(draw: Draw, family: str) -> float:
    """Return the tokens of the next image."""
    side = _IMAGE_SIDE * exp(_SIDE_DEVIATION * NormalDist().inv_cdf(draw.uniform()))
    stretch = exp(_SHAPE_DEVIATION / 2 * NormalDist().inv_cdf(draw.uniform()))
    return float(image_tokens(family, round(side * stretch), round(side / stretch)))


@cache
def _mean_image_tokens(family: str) -> float:
    draw = Draw("images", family)
    return sum(_image_tokens(draw, family) for _ in range(_MEAN_IMAGES)) / _MEAN_IMAGES
