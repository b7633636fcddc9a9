"""Chats that request images: ``modalities`` with ``image``, as in other open servers.

The prompt consists of the texts of user and system messages, and their images are the input of a model that edits. Such
a model has no memory, so earlier answers are dropped. The answer has ``images`` next to its ``content``, which stays
empty: image models write no text. A stream sends all images at once.
"""

import base64
from collections.abc import AsyncIterator, Iterable
from typing import Any

from omnibus.encoding.image import MIME
from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.exchange import PostRequest
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.media.files import file_url
from omnibus_gateway.media.made_files import MadeFiles
from omnibus_gateway.openai import chat_response, images, vllm_omni
from omnibus_gateway.openai.chat_request import AssistantMessage, ChatRequest, ImageConfig, UserMessage
from omnibus_gateway.openai.chat_response import ChatCompletionImage, ChatCompletionImageUrl
from omnibus_gateway.openai.chat_stream import DONE
from omnibus_gateway.openai.images import ImageRequest
from omnibus_gateway.openai.messages import MediaRef, convert_messages
from omnibus_gateway.request.lifecycle import run_to_end
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.images import (
    CLIENT_PARAM_NAMES,
    EditImages,
    GeneratedImages,
    ImageTasks,
    check_image_count,
    collect_images,
)
from omnibus_gateway.tasks.resolve import rename_params

_CLIENT_PARAM_NAMES = {
    "size": "image_config.size",
    "steps": "image_config.steps",
    "prompt": "messages",
    "image": "messages",
}


class ImageChatRoute:
    """Answers chats with images."""

    def __init__(self, settings: GatewaySettings, chat: Chat, painters: ImageTasks, files: MadeFiles) -> None:
        self._settings = settings
        self._chat = chat
        self._painters = painters
        self._files = files

    async def answer_chat(self, request: ChatRequest, post: PostRequest, sending: ResponseWriter) -> None:
        """Answer ``request``, which ``post`` contains. Raises ``OmnibusError``."""
        task = self._painters.get_task(request.model)
        messages, refs = convert_messages(request)
        refs = await self._chat.resolve_files(messages, refs)
        prompt = _parse_messages(request, messages, refs)
        image_request = _build_image_request(request, prompt)
        with rename_params(_CLIENT_PARAM_NAMES), rename_params(CLIENT_PARAM_NAMES, "image"):
            check_image_count(request.model, task, len(refs))
            if image_request.url:
                self._files.require_enabled("response_format")
            run = sending.run = self._painters.open_request(request.model, request.seed, post.pinned, post.prices)
            base = post.base_url(self._settings)
            async with run_to_end(run):
                pictures = EditImages(await self._chat.load_media(refs))
                output = await self._painters.generate_images(
                    run, image_request.task_fields() | {"count": True}, pictures
                )
                generated_images = await collect_images(run, output, image_request.format, image_request.compression)
                image_parts = [
                    await self._to_image_part(index, file, image_request, base)
                    for index, file in enumerate(generated_images.files)
                ]
        await _send_answer(sending, run, request, generated_images, image_parts)

    async def _to_image_part(
        self, index: int, file: bytes, image_request: ImageRequest, base: str
    ) -> ChatCompletionImage:
        kind = MIME[image_request.format]
        if image_request.url:
            return ChatCompletionImage(ChatCompletionImageUrl(file_url(base, await self._files.put(file, kind))), index)
        return ChatCompletionImage(
            ChatCompletionImageUrl(f"data:{kind};base64,{base64.b64encode(file).decode()}"), index
        )


async def _send_answer(
    sending: ResponseWriter,
    run: ClientRequest,
    request: ChatRequest,
    generated_images: GeneratedImages,
    image_parts: list[ChatCompletionImage],
) -> None:
    token_usage = chat_response.build_usage(prompt_text=generated_images.text, image=generated_images.pixels // 256)
    shapes = vllm_omni.answer_encoders(request)
    id, model, created_at = f"chatcmpl-{run.id}", run.model, int(run.created)
    text = "" if request.wants_text else None
    if not request.stream:
        body = shapes.drawn(id=id, model=model, created=created_at, text=text, usage=token_usage, images=image_parts)
        await sending.send_body(JSON, body)
        return
    frames = shapes.stream(id, model, created_at, include_usage=request.wants_usage)
    parts = (frames.role(text), frames.images(image_parts), frames.finish("stop"), frames.usage(token_usage))
    await sending.send_stream(_iterate_frames(parts), last=DONE)


async def _iterate_frames(frames: Iterable[bytes]) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame


def _parse_messages(request: ChatRequest, messages: list[dict[str, Any]], refs: list[MediaRef]) -> str:
    """Return the prompt; ``refs`` are the images that belong to it."""
    if not any(isinstance(message, UserMessage) for message in request.messages):
        raise BadRequest("Image generation needs at least one user message.", param="messages")
    for ref in refs:
        if ref.modality != "image":
            raise BadRequest(f"Image generation accepts text and images, not {ref.modality}.", param=ref.param)
    texts = []
    for place, (request_message, message) in enumerate(zip(request.messages, messages, strict=True)):
        words = _content_text(message["content"])
        if not isinstance(request_message, AssistantMessage):
            texts.append(words)
        elif words.strip() or request_message.audio is not None:
            raise BadRequest(
                "Image generation does not accept assistant messages with text.", param=f"messages[{place}]"
            )
    prompt = "\n".join(each for each in texts if each.strip())
    if not prompt:
        raise BadRequest("The messages must describe the image.", param=f"messages[{len(messages) - 1}].content")
    return prompt


def _content_text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def _build_image_request(request: ChatRequest, prompt: str) -> ImageRequest:
    config = request.image_config or ImageConfig()
    seed = None if request.seed is None else request.seed % 2**62
    options = {name: getattr(config, name) for name in config.__struct_fields__}
    image_request = ImageRequest(model=request.model, prompt=prompt, seed=seed, **options)
    try:
        images.check_options(image_request)
    except BadRequest as error:
        error.param = f"image_config.{error.param}"
        raise
    return image_request
