"""``POST /v1/images/generations`` and ``/v1/images/edits``, and the refusal of ``/v1/images/variations``.

A generation is one graph of the model's composite task: the prompt is encoded once, each picture denoised and decoded
by itself. Previews of the denoiser are the partial images of a stream.
"""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import numpy as np

from omnibus.encoding.image import MIME
from omnibus.errors import BadRequest, NotFound, OmnibusError
from omnibus.settings import GatewaySettings
from services.gateway.http.exchange import JSON, about
from services.gateway.http.response import Sending
from services.gateway.http.route import Asked, Route, conduct, stream
from services.gateway.media.files import Files, url
from services.gateway.media.inspect import Limits, Media, received
from services.gateway.openai import images, multipart
from services.gateway.openai.images import CompletedImage, Image, Options, PartialImage
from services.gateway.request.request import Run
from services.gateway.tasks.images import Painters, between, check_count, drawn, encoded, renamed, steps_of

Kind = Literal["image_generation", "image_edit"]


class Generations(Route):
    """Pictures of a text."""

    def __init__(self, settings: GatewaySettings, painters: Painters, files: Files) -> None:
        super().__init__(settings)
        self._painters = painters
        self._files = files

    async def answer(self, asked: Asked, sending: Sending) -> None:
        wanted = images.parse_generation(asked.body)
        await self.draw(wanted, asked, sending, "image_generation")

    async def draw(
        self, wanted: Options, asked: Asked, sending: Sending, kind: Kind, pictures: Sequence[Media] = ()
    ) -> None:
        """Make what is ``wanted`` and send it."""
        task = self._painters.task(wanted.model)
        sending.model = wanted.model
        check_count(wanted.model, task, len(pictures))
        if wanted.url:
            self._files.require("response_format")
        wish = wanted.wish() | {"count": True}
        run = self._painters.open(wanted.model, wanted.seed, asked.pinned)
        try:
            if wanted.stream:
                wish["previews"] = between(steps_of(task, wish), wanted.partial_images or 0)
                async with conduct(run, sending):
                    await stream(sending, run, self._events(run, wanted, wish, kind, pictures))
                return
            async with conduct(run, sending):
                body = await self._whole(run, wanted, wish, pictures, asked.base)
        except OmnibusError as error:
            raise renamed(error) from None
        await sending.whole(200, JSON, body, about(run))

    async def _whole(
        self, run: Run, wanted: Options, wish: dict[str, Any], pictures: Sequence[Media], base: str
    ) -> bytes:
        output = await self._painters.paint(run, wish, pictures)
        made = await drawn(run, output, wanted.format, wanted.compression)
        data = [await self._image(file, wanted, base) for file in made.files]
        used = images.usage(made.text, made.pixels)
        return images.response(int(run.created), data, wanted.format, _size(*made.size), used)

    async def _image(self, file: bytes, wanted: Options, base: str) -> Image:
        if not wanted.url:
            return Image(b64_json=file)
        return Image(url=url(base, await self._files.put(file, MIME[wanted.format])))

    async def _events(
        self, run: Run, wanted: Options, wish: dict[str, Any], kind: Kind, pictures: Sequence[Media]
    ) -> AsyncIterator[bytes]:
        output = await self._painters.paint(run, wish, pictures)
        extent = wanted.extent
        for previews in output.previews:
            index = 0
            async for preview in previews:
                size = extent or _eightfold(preview.array)
                file = await encoded(preview.array, wanted.format, wanted.compression, size)
                yield images.event(
                    PartialImage(
                        f"{kind}.partial_image",  # type: ignore[arg-type]
                        file,
                        index,
                        int(time.time()),
                        _size(*size),
                        wanted.format,
                    )
                )
                index += 1
        made = await drawn(run, output, wanted.format, wanted.compression)
        yield images.event(
            CompletedImage(
                f"{kind}.completed",  # type: ignore[arg-type]
                made.files[0],
                int(time.time()),
                _size(*made.size),
                wanted.format,
                images.usage(made.text, made.pixels),
            )
        )


class Edits(Generations):
    """Pictures of a text and of other pictures."""

    async def answer(self, asked: Asked, sending: Sending) -> None:
        form = multipart.parse(asked.body, asked.kind)
        form.only("image", "mask", "markup")
        wanted = images.parse_edit(form.fields())
        task = self._painters.task(wanted.model)
        for name in ("mask", "markup"):
            if form.files(name):
                raise BadRequest(f"{wanted.model} changes pictures as a whole: leave the {name} out", param=name)
        files = [(part.data, part.mime) for part in form.files("image")]
        if not files:
            raise BadRequest("Missing required parameter: 'image'.", param="image")
        check_count(wanted.model, task, len(files))
        found = await received(files, "image", Limits(body_bytes=self._settings.max_body), "image")
        await self.draw(wanted, asked, sending, "image_edit", found)


class Variations(Route):
    """Refuses variations, with advice."""

    async def answer(self, asked: Asked, sending: Sending) -> None:
        raise NotFound("variations are not made here: send the picture and a prompt to /v1/images/edits")


def _size(width: int, height: int) -> str:
    return f"{width}x{height}"


def _eightfold(preview: np.ndarray) -> tuple[int, int]:
    """The size of a picture whose size the model chose: a preview has one pixel for 8 x 8."""
    return preview.shape[1] * 8, preview.shape[0] * 8
