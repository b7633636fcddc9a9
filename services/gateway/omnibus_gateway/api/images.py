"""``POST /v1/images/generations`` and ``/v1/images/edits``; rejects ``/v1/images/variations``.

A generation is one graph of the model's composite task: the prompt is encoded once, and each image is denoised and
decoded separately. Previews of the denoiser are the partial images of a stream.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from omnibus.encoding.image import MIME
from omnibus.errors import BadRequest, NotFound
from omnibus.settings import GatewaySettings
from omnibus_gateway.core import ClientRequest
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.media.files import MadeFiles, file_url
from omnibus_gateway.media.inspect import InspectedMedia, MediaLimits, inspect_files
from omnibus_gateway.openai import images, multipart
from omnibus_gateway.openai.images import CompletedImage, EditRequest, Image, ImageOptions, PartialImage
from omnibus_gateway.openai.messages import MediaRef
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.images import (
    CLIENT_PARAM_NAMES,
    EditImages,
    ImageTasks,
    check_image_count,
    collect_images,
    encode_image,
    preview_interval,
    step_count,
)
from omnibus_gateway.tasks.resolve import rename_params

Kind = Literal["image_generation", "image_edit"]


class ImageGenerationRoute(PostRoute):
    """Generates images from a text."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, painters: ImageTasks, files: MadeFiles) -> None:
        super().__init__(settings)
        self._painters = painters
        self._files = files

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        options = images.parse_generation(post.body)
        await self.send_images(options, post, sending, "image_generation")

    async def send_images(
        self,
        options: ImageOptions,
        post: PostRequest,
        sending: ResponseWriter,
        kind: Kind,
        count: int = 0,
        load: Callable[[], Awaitable[Sequence[InspectedMedia]]] | None = None,
    ) -> None:
        """Generate and send the ``options`` images, from the ``count`` images of ``load``, and a mask after them."""
        task = self._painters.get_task(options.model)
        sending.model = options.model
        check_image_count(options.model, task, count)
        if options.url:
            self._files.require_enabled("response_format")
        wish = self._painters.add_defaults(options.model, options.task_fields()) | {"count": True}
        run = self._painters.open_request(options.model, options.seed, post.pinned, post.prices)
        sending.run = run
        with rename_params(CLIENT_PARAM_NAMES, "image"):
            async with run.until_end():
                files = await load() if load is not None else ()
                pictures = EditImages(files[:count], files[count] if len(files) > count else None)
                if options.stream:
                    wish["previews"] = preview_interval(step_count(task, wish), options.partial_images or 0)
                    await sending.send_stream(self._stream_events(run, options, wish, kind, pictures))
                    return
                body = await self._render_response(run, options, wish, pictures, post.base_url(self._settings))
        await sending.send_body(JSON, body)

    async def _render_response(
        self,
        run: ClientRequest,
        options: ImageOptions,
        wish: dict[str, Any],
        pictures: EditImages,
        base: str,
    ) -> bytes:
        output = await self._painters.generate_images(run, wish, pictures)
        generated_images = await collect_images(run, output, options.format, options.compression)
        data = [await self._to_image(file, options, base) for file in generated_images.files]
        token_usage = images.image_usage(generated_images.text, generated_images.pixels)
        return images.encode_response(
            int(run.created), data, options.format, _format_size(*generated_images.size), token_usage
        )

    async def _to_image(self, file: bytes, options: ImageOptions, base: str) -> Image:
        if not options.url:
            return Image(b64_json=file)
        return Image(url=file_url(base, await self._files.put(file, MIME[options.format])))

    async def _stream_events(
        self,
        run: ClientRequest,
        options: ImageOptions,
        wish: dict[str, Any],
        kind: Kind,
        pictures: EditImages,
    ) -> AsyncIterator[bytes]:
        output = await self._painters.generate_images(run, wish, pictures)
        extent = options.extent
        for previews in output.previews:
            index = 0
            async for preview in previews:
                if preview.array is None:
                    continue
                size = extent or _full_size(preview.array)
                file = await encode_image(preview.array, options.format, options.compression, size)
                yield images.encode_event(
                    PartialImage(
                        f"{kind}.partial_image",  # type: ignore[arg-type]
                        file,
                        index,
                        int(time.time()),
                        _format_size(*size),
                        options.format,
                    )
                )
                index += 1
        generated_images = await collect_images(run, output, options.format, options.compression)
        yield images.encode_event(
            CompletedImage(
                f"{kind}.completed",  # type: ignore[arg-type]
                generated_images.files[0],
                int(time.time()),
                _format_size(*generated_images.size),
                options.format,
                images.image_usage(generated_images.text, generated_images.pixels),
            )
        )


class ImageEditRoute(ImageGenerationRoute):
    """Generates images from a text and other images."""

    def __init__(self, settings: GatewaySettings, painters: ImageTasks, files: MadeFiles, chat: Chat) -> None:
        super().__init__(settings, painters, files)
        self._chat = chat

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        if post.content_type.partition(";")[0].strip().lower() == "application/json":
            await self._edit_named(images.parse_edit_json(post.body), post, sending)
            return
        form = multipart.parse_form(post.body, post.content_type)
        form.check_file_names("image", "mask", "markup")
        edit_request = images.parse_edit(form.fields())
        task = self._painters.get_task(edit_request.model)
        if form.files("markup"):
            raise BadRequest(f"{edit_request.model} takes no markup: omit it, or send a mask", param="markup")
        count = len(form.files("image"))
        if not count:
            raise BadRequest("Missing required parameter: 'image'.", param="image")
        check_image_count(edit_request.model, task, count)
        files = [(part.data, part.mime) for name in ("image", "mask") for part in form.files(name)]
        load = partial(inspect_files, files, "image", MediaLimits(body_bytes=self._settings.max_body), "image")
        await self.send_images(edit_request, post, sending, "image_edit", count, load)

    async def _edit_named(self, edit_request: EditRequest, post: PostRequest, sending: ResponseWriter) -> None:
        """Answer an edit whose input images the request refers to."""
        check_image_count(edit_request.model, self._painters.get_task(edit_request.model), len(edit_request.images))
        refs = [
            MediaRef("image", url=each.image_url or "", file_id=each.file_id or "", param=name)
            for name, each in edit_request.references.items()
        ]
        load = partial(self._chat.load_media, refs)
        await self.send_images(edit_request, post, sending, "image_edit", len(edit_request.images), load)


class ImageVariationRoute(PostRoute):
    """Rejects variations, with advice."""

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        raise NotFound("variations are not supported: send the image and a prompt to /v1/images/edits")


def _format_size(width: int, height: int) -> str:
    return f"{width}x{height}"


def _full_size(preview: np.ndarray) -> tuple[int, int]:
    """Return the size that the model chose for an image: a preview has one pixel for 8 x 8."""
    return preview.shape[1] * 8, preview.shape[0] * 8
