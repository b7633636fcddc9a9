"""Image generation: client parameters to a composite task, and its results."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnibus.encoding import image as encoding_image
from omnibus.encoding.image import PictureFormat
from omnibus.errors import BadRequest
from omnibus.metrics import GATEWAY
from omnibus.task import CompositeTask, Segment, record, use
from omnibus.task.library import ImageOutput
from omnibus.task.runtime import run as run_task
from omnibus_gateway.media.inspect import InspectedMedia
from omnibus_gateway.pricing.meter import PriceOptions
from omnibus_gateway.pricing.quotes import ExpectedSizes, Quote, require_static
from omnibus_gateway.request.request import ClientRequest, RequestFactory
from omnibus_gateway.tasks.prepared_chat import TaskCache, place_media
from omnibus_gateway.tasks.resolve import (
    IMAGE,
    IMAGES,
    build_request,
    create_image_task,
    max_reference_images,
    request_class,
    requires_image,
)

APP = "images"

#: Client names of task fields, if they differ.
CLIENT_PARAM_NAMES = {"width": "size", "height": "size", "every": "partial_images", IMAGES: "image"}


MASK = "mask"
#: Fields of ``DrawInput`` that a model may have defaults for.
_DEFAULTS = ("width", "height", "steps", "guidance")


class EditImages(NamedTuple):
    """Images of a request, and the mask of the first one."""

    images: Sequence[InspectedMedia] = ()
    mask: InspectedMedia | None = None


NO_IMAGES = EditImages()


class ImageTasks:
    """Image tasks of the models of the plan."""

    def __init__(self, runs: RequestFactory) -> None:
        self._runs = runs
        self._tasks = TaskCache(runs.router, create_image_task)

    def get_task(self, name: str) -> CompositeTask:
        """Return the task of model ``name``. Raises ``NotFound``, and ``BadRequest`` if it has no image output."""
        return self._tasks.get_task(name)

    def open_request(self, model: str, seed: int | None, pinned_path: str, prices: PriceOptions) -> ClientRequest:
        """Open a request to ``model``. Raises as ``RequestFactory.open_request`` and ``Quotes.open_check``."""
        run = self._runs.open_request(APP, model, seed=seed, pinned_path=pinned_path)
        run.price = self._runs.quotes.open_check(prices, self.get_task(model))
        return run

    async def generate_images(
        self, run: ClientRequest, wish: Mapping[str, Any], inputs: EditImages = NO_IMAGES
    ) -> ImageOutput:
        """Send ``wish``; return its results, which you must read.

        ``wish`` has the fields of ``DrawInput`` that the client set. Raises ``BadRequest`` for an unsupported field,
        and the errors of ``Run.submit``, with the client's name in ``param``.
        """
        task = self.get_task(run.model)
        wish = self.add_defaults(run.model, wish) | ({} if inputs.mask is None else {MASK: inputs.mask})
        count = len(inputs.images)
        check_image_count(run.model, task, count)
        self._runs.router.get_model(run.model).image_defaults.check_request(run.model, wish, count)
        if MASK in wish and MASK not in request_class(task).model_fields:
            raise BadRequest(f"{run.model} edits only whole images: omit the mask", param=MASK)
        placed_images = [await place_media(self._runs, run, image) for image in inputs.images]
        if inputs.mask is not None:
            wish[MASK] = await place_media(self._runs, run, inputs.mask)
        with use(run):
            request = build_request(run.model, task, {**wish, **_image_inputs(task, placed_images)})
            output: ImageOutput = await run_task(task.invoke, request)
        return output

    def add_defaults(self, model: str, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Add the defaults that ``model`` declares for missing fields of ``wish``.

        If the model accepts reference images, their size is the default size.
        """
        declared = self._runs.router.get_model(model).image_defaults
        defaults = {name: value for name in _DEFAULTS if (value := getattr(declared, name))}
        if "width" in wish or max_reference_images(self.get_task(model)):
            defaults = {name: value for name, value in defaults.items() if name not in ("width", "height")}
        return {**defaults, **wish}

    def record_graph(self, run: ClientRequest, wish: Mapping[str, Any]) -> Segment:
        """Record the graph of ``wish``, for its price. Raises as ``generate_images`` for an invalid wish."""
        task = self.get_task(run.model)
        check_image_count(run.model, task, 0)
        request = build_request(run.model, task, self.add_defaults(run.model, wish))
        return record(task.invoke, request, run.choice_point)

    async def choose_path(self, run: ClientRequest, wish: Mapping[str, Any], prices: PriceOptions) -> str:
        """Return the path for ``wish`` and ``run`` under ``prices``.

        Raises as ``Quotes.open_check`` and ``PriceCheck.choose_path``.
        """
        check = self._runs.quotes.open_check(prices, self.get_task(run.model))
        if check is None:
            return run.pinned
        return await check.choose_path(run.model, self.record_graph(run, wish), run.pinned)

    async def quote_image(self, model: str, wish: Mapping[str, Any]) -> Quote:
        """Return the price of ``wish``. Raises ``BadRequest`` for a task whose graph depends on results."""
        require_static(self.get_task(model))
        segment = self.record_graph(self._runs.open_request(APP, model), wish)
        return await self._runs.quotes.quote(model, segment, ExpectedSizes())


def check_image_count(model: str, task: CompositeTask, count: int) -> None:
    """Raise ``BadRequest`` unless ``task`` of ``model`` accepts ``count`` reference images."""
    most = max_reference_images(task)
    if count > most:
        takes = f"at most {most} reference images" if most > 1 else "one reference image" if most else "no images"
        raise BadRequest(f"{model} accepts {takes}, not {count}", param="image")
    if not count and requires_image(task):
        raise BadRequest(f"{model} only edits images: send an image to /v1/images/edits", param="image")


def _image_inputs(task: CompositeTask, placed_images: Sequence[Any]) -> dict[str, Any]:
    """Return reference images as fields of the request of ``task``."""
    if not placed_images:
        return {}
    return {IMAGES: tuple(placed_images)} if IMAGES in request_class(task).model_fields else {IMAGE: placed_images[0]}


def preview_interval(steps: int, previews: int) -> int:
    """Return the steps between previews, for at most ``previews`` of them; 0 means none."""
    return -(-steps // (previews + 1)) if previews else 0


def step_count(task: CompositeTask, wish: Mapping[str, Any]) -> int:
    """Return the number of steps for ``wish``: its own, or the default of ``task``."""
    usual = request_class(task).model_fields["steps"].default
    return int(wish.get("steps", usual))


class GeneratedImages(NamedTuple):
    """Image files with their width and height; ``text`` tokens read, and ``pixels`` generated."""

    files: list[bytes]
    size: tuple[int, int]
    text: int
    pixels: int


async def collect_images(
    run: ClientRequest, output: ImageOutput, format: PictureFormat, quality: int
) -> GeneratedImages:
    """Wait for all images of ``output``, and encode them."""
    arrays = await asyncio.gather(*(_await_image(run, image) for image in output.images))
    files = await asyncio.gather(*(encode_image(each, format, quality) for each in arrays))
    text = await output.tokens if output.tokens is not None else 0
    height, width, _ = arrays[0].shape
    return GeneratedImages(list(files), (width, height), text, sum(each.shape[0] * each.shape[1] for each in arrays))


async def _await_image(run: ClientRequest, result: Any) -> NDArray[np.uint8]:
    picture: NDArray[np.uint8] = await result
    GATEWAY.first_output(run.model, "image").observe(run.age_seconds)
    return picture


async def encode_image(
    pixels: NDArray[np.uint8], format: PictureFormat, quality: int, size: tuple[int, int] | None = None
) -> bytes:
    """Encode an image as a file, in a thread."""
    return await asyncio.to_thread(encoding_image.encode_image, pixels, format, quality, size)
