"""``POST /v1/images/generations`` and ``/v1/images/edits``, and the refusal of ``/v1/images/variations``.

A generation is one graph of the model's composite task: the prompt is encoded once, each picture denoised and decoded
by itself. Previews of the denoiser are the partial images of a stream.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import numpy as np

from omnibus.encoding.picture import MIME
from omnibus.errors import BadRequest, NotFound, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus.task.library import ImageOutput
from services.gateway.exchange import JSON, about
from services.gateway.files import Files
from services.gateway.openai import images, multipart
from services.gateway.openai.images import CompletedImage, Image, Options, PartialImage
from services.gateway.openai.media import Limits, Media, received
from services.gateway.painting import Painters, between, check_count, encoded, renamed, steps_of
from services.gateway.routes.serving import Asked, Route, conduct, stream
from services.gateway.run import Run
from services.gateway.sending import Sending

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
        made = await asyncio.gather(*(_picture(run, image) for image in output.images))
        files = await asyncio.gather(*(encoded(each, wanted.format, wanted.compression) for each in made))
        data = [await self._image(file, wanted, base) for file in files]
        used = await _usage(output, made)
        return images.response(int(run.created), data, wanted.format, _size(made[0]), used)

    async def _image(self, file: bytes, wanted: Options, base: str) -> Image:
        if not wanted.url:
            return Image(b64_json=file)
        ticket = await self._files.put(file, MIME[wanted.format])
        return Image(url=f"{base}/v1/files/{ticket.id}/content")

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
                        f"{size[0]}x{size[1]}",
                        wanted.format,
                    )
                )
                index += 1
        picture = await _picture(run, output.images[0])
        file = await encoded(picture, wanted.format, wanted.compression)
        used = await _usage(output, [picture])
        yield images.event(
            CompletedImage(
                f"{kind}.completed",  # type: ignore[arg-type]
                file,
                int(time.time()),
                _size(picture),
                wanted.format,
                used,
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


async def _picture(run: Run, result: Any) -> np.ndarray:
    picture: np.ndarray = await result
    GATEWAY.first_output(run.model, "image").observe(run.age)
    return picture


async def _usage(output: ImageOutput, made: Sequence[np.ndarray]) -> images.ImageUsage:
    text = await output.tokens if output.tokens is not None else 0
    return images.usage(text, sum(each.shape[0] * each.shape[1] for each in made))


def _size(picture: np.ndarray) -> str:
    return f"{picture.shape[1]}x{picture.shape[0]}"


def _eightfold(preview: np.ndarray) -> tuple[int, int]:
    """The size of a picture whose size the model chose: a preview has one pixel for 8 x 8."""
    return preview.shape[1] * 8, preview.shape[0] * 8
