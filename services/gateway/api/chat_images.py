"""Chats that want pictures: ``modalities`` with ``image``, as other open servers have it.

What users and systems say is the prompt, message by message, and their pictures are what a model that edits goes by:
such a model remembers nothing, so answers before are left out. The answer has ``images`` beside its ``content``, which
stays empty: a model that makes pictures writes none. A stream brings them all at once.
"""

import base64

from starlette.types import Receive, Scope, Send

from omnibus.encoding.image import MIME
from omnibus.errors import BadRequest, OmnibusError
from omnibus.settings import GatewaySettings
from services.gateway.http.exchange import JSON, response_headers, while_connected
from services.gateway.http.response import ResponseWriter
from services.gateway.http.route import pinned_path, public_base_url, run_to_end, serve_request
from services.gateway.media.files import FileStore, file_url
from services.gateway.openai import chat_response, images, vllm_omni
from services.gateway.openai.chat_request import AssistantMessage, ChatRequest, ImageConfig, UserMessage
from services.gateway.openai.chat_response import ChatCompletionImage, ChatCompletionImageUrl
from services.gateway.openai.chat_stream import DONE
from services.gateway.openai.images import ImageRequest
from services.gateway.openai.messages import MediaRef, convert_messages
from services.gateway.request.request import ClientRequest
from services.gateway.tasks.chat import Chat
from services.gateway.tasks.images import GeneratedImages, ImageTasks, check_image_count, collect_images, rename_param

_CLIENT_PARAM_NAMES = {
    "size": "image_config.size",
    "steps": "image_config.steps",
    "prompt": "messages",
    "image": "messages",
}


class ImageChatRoute:
    """Answers chats with pictures."""

    def __init__(self, settings: GatewaySettings, chat: Chat, painters: ImageTasks, files: FileStore) -> None:
        self._settings = settings
        self._chat = chat
        self._painters = painters
        self._files = files

    async def __call__(self, request: ChatRequest, scope: Scope, receive: Receive, send: Send) -> None:
        sending = ResponseWriter(send)
        work = self._answer_chat(request, pinned_path(scope), public_base_url(scope, self._settings), sending)
        await serve_request(sending, while_connected(scope, receive, work))

    async def _answer_chat(self, request: ChatRequest, path: str, base: str, sending: ResponseWriter) -> None:
        task = self._painters.get_task(request.model)
        sending.model = request.model
        prompt, refs = _parse_messages(request)
        wanted = _build_image_request(request, prompt)
        try:
            check_image_count(request.model, task, len(refs))
            if wanted.url:
                self._files.require_enabled("response_format")
            pictures = await self._chat.load_media(refs)
            run = self._painters.open_request(request.model, request.seed, path)
            async with run_to_end(run, sending):
                output = await self._painters.generate_images(run, wanted.task_fields() | {"count": True}, pictures)
                made = await collect_images(run, output, wanted.format, wanted.compression)
                shown = [await self._to_image_part(index, file, wanted, base) for index, file in enumerate(made.files)]
        except OmnibusError as error:
            called = rename_param(error)
            called.param = _CLIENT_PARAM_NAMES.get(called.param, called.param)
            raise called from None
        await _send_answer(sending, run, request, made, shown)

    async def _to_image_part(self, index: int, file: bytes, wanted: ImageRequest, base: str) -> ChatCompletionImage:
        kind = MIME[wanted.format]
        if wanted.url:
            return ChatCompletionImage(ChatCompletionImageUrl(file_url(base, await self._files.put(file, kind))), index)
        return ChatCompletionImage(
            ChatCompletionImageUrl(f"data:{kind};base64,{base64.b64encode(file).decode()}"), index
        )


async def _send_answer(
    sending: ResponseWriter,
    run: ClientRequest,
    request: ChatRequest,
    made: GeneratedImages,
    shown: list[ChatCompletionImage],
) -> None:
    used = chat_response.build_usage(prompt_text=made.text, image=made.pixels // 256)
    shapes = vllm_omni.answer_encoders(request)
    id, model, created = f"chatcmpl-{run.id}", run.model, int(run.created)
    text = "" if request.wants_text else None
    if not request.stream:
        body = shapes.drawn(id=id, model=model, created=created, text=text, usage=used, images=shown)
        await sending.send_body(200, JSON, body, response_headers(run))
        return
    frames = shapes.stream(id, model, created, include_usage=request.wants_usage)
    await sending.begin_stream(response_headers(run))
    for frame in (frames.role(text), frames.images(shown), frames.finish("stop"), frames.usage(used)):
        await sending.send_chunk(frame)
    await sending.end_stream(DONE)


def _parse_messages(request: ChatRequest) -> tuple[str, list[MediaRef]]:
    """The prompt, and the pictures that go with it."""
    if not any(isinstance(message, UserMessage) for message in request.messages):
        raise BadRequest("Image generation needs at least one user message.", param="messages")
    messages, refs = convert_messages(request)
    for ref in refs:
        if ref.modality != "image":
            raise BadRequest(f"Pictures are made of text and pictures, not of {ref.modality}.", param=ref.param)
    said = []
    for place, (given, message) in enumerate(zip(request.messages, messages, strict=True)):
        words = _content_text(message["content"])
        if not isinstance(given, AssistantMessage):
            said.append(words)
        elif words.strip() or given.audio is not None:
            raise BadRequest(
                "Image generation does not accept assistant messages with text.", param=f"messages[{place}]"
            )
    prompt = "\n".join(each for each in said if each.strip())
    if not prompt:
        raise BadRequest("The messages say nothing of the picture.", param=f"messages[{len(messages) - 1}].content")
    return prompt, refs


def _content_text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def _build_image_request(request: ChatRequest, prompt: str) -> ImageRequest:
    config = request.image_config or ImageConfig()
    seed = None if request.seed is None else request.seed % 2**62
    said = {name: getattr(config, name) for name in config.__struct_fields__}
    wanted = ImageRequest(model=request.model, prompt=prompt, seed=seed, **said)
    try:
        images.check_options(wanted)
    except BadRequest as error:
        error.param = f"image_config.{error.param}"
        raise
    return wanted
