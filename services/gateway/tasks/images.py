"""Pictures: what a client wishes to a composite task that makes them, and its results."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from omnibus.encoding import image as encoding_image
from omnibus.encoding.image import PictureFormat
from omnibus.errors import BadMedia, BadRequest, OmnibusError, Rejected
from omnibus.metrics import GATEWAY
from omnibus.task import CompositeTask, use
from omnibus.task.library import ImageOutput
from omnibus.task.runtime import run as run_task
from services.gateway.media.inspect import Media
from services.gateway.request.arena_inputs import MANY, place
from services.gateway.request.request import Run, Runs
from services.gateway.tasks.resolve import IMAGE, IMAGES, Known, painter, pictures_taken, request_of

APP = "images"

#: What clients call the fields of a task's request, where that differs.
_CALLED = {"width": "size", "height": "size", "every": "partial_images", IMAGES: "image"}


class Painters:
    """The tasks that make pictures with models of the plan."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._tasks = Known(runs.router, painter)

    def task(self, name: str) -> CompositeTask:
        """The task of model ``name``. Raises ``NotFound``, and ``BadRequest`` for a model that makes no pictures."""
        return self._tasks.task(name)

    def open(self, model: str, seed: int | None = None, pinned: str = "") -> Run:
        """A new request to ``model``. Raises as ``Runs.open``."""
        return self._runs.open(APP, model, seed=seed, pinned=pinned)

    async def paint(self, run: Run, wish: Mapping[str, Any], images: Sequence[Media] = ()) -> ImageOutput:
        """Send a wish on its way; returns the results, which are still to be read.

        ``wish`` has the fields of ``DrawInput`` that were said. Raises ``BadRequest`` for one that the model
        does not support, and whatever ``Run.submit`` raises, with ``param`` in a client's words.
        """
        task = self.task(run.model)
        check_count(run.model, task, len(images))
        placed = [await self._place(run, image) for image in images]
        try:
            with use(run):
                request = request_of(task)(**wish, **_pictures(task, placed))
                output: ImageOutput = await run_task(task.invoke, request)
        except ValidationError as error:
            raise _refused(run.model, error) from None
        return output

    async def _place(self, run: Run, image: Media) -> dict[str, Any]:
        runs, info = self._runs, image.info
        about = (info.modality, info.mime, info.sha256)
        return await place(runs.tensors, runs.kept, image.data, about, run.inputs, run.deadline, MANY, run.salt)


def check_count(model: str, task: CompositeTask, count: int) -> None:
    """Raises ``BadRequest`` unless ``task`` of ``model`` takes as many pictures to go by as there are."""
    most = pictures_taken(task)
    if count > most:
        takes = f"at most {most} pictures" if most > 1 else "one picture" if most else "no picture"
        raise BadRequest(f"{model} takes {takes} to go by, not {count}", param="image")
    if most and not count:
        raise BadRequest(f"{model} makes pictures of other ones: send an image to /v1/images/edits", param="image")


def _pictures(task: CompositeTask, placed: Sequence[Any]) -> dict[str, Any]:
    """Pictures as the request of ``task`` takes them."""
    if not placed:
        return {}
    return {IMAGES: tuple(placed)} if IMAGES in request_of(task).model_fields else {IMAGE: placed[0]}


def between(steps: int, previews: int) -> int:
    """Steps from one preview to the next so that there are at most ``previews`` of them; 0: none."""
    return -(-steps // (previews + 1)) if previews else 0


def steps_of(task: CompositeTask, wish: Mapping[str, Any]) -> int:
    """Return the number of steps for ``wish``: its own, or the default of ``task``."""
    usual = request_of(task).model_fields["steps"].default
    return int(wish.get("steps", usual))


class Drawn(NamedTuple):
    """Pictures as files, their width and height, and the tokens of what was read and made."""

    files: list[bytes]
    size: tuple[int, int]
    text: int
    pixels: int


async def drawn(run: Run, output: ImageOutput, format: PictureFormat, quality: int) -> Drawn:
    """The pictures of ``output`` when all of them are made."""
    made = await asyncio.gather(*(_picture(run, image) for image in output.images))
    files = await asyncio.gather(*(encoded(each, format, quality) for each in made))
    text = await output.tokens if output.tokens is not None else 0
    height, width, _ = made[0].shape
    return Drawn(list(files), (width, height), text, sum(each.shape[0] * each.shape[1] for each in made))


async def _picture(run: Run, result: Any) -> NDArray[np.uint8]:
    picture: NDArray[np.uint8] = await result
    GATEWAY.first_output(run.model, "image").observe(run.age)
    return picture


async def encoded(
    pixels: NDArray[np.uint8], format: PictureFormat, quality: int, size: tuple[int, int] | None = None
) -> bytes:
    """A picture as a file, made in a thread."""
    return await asyncio.to_thread(encoding_image.encode, pixels, format, quality, size)


def renamed(error: OmnibusError) -> OmnibusError:
    """``error`` with ``param`` as clients know it."""
    if isinstance(error, BadMedia):
        error.param = error.param or "image"
    elif isinstance(error, Rejected):
        error.param = _CALLED.get(error.param, error.param)
    return error


def _refused(model: str, error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return BadRequest(
            f"{model} does not support the parameter {name!r}: leave it out", param=_CALLED.get(name, name)
        )
    return BadRequest(f"{name}: {first['msg']}", param=_CALLED.get(name, name))
