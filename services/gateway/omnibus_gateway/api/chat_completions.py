"""``POST /v1/chat/completions``, the one hot path: for models of the plan, and for apps.

Chats in vLLM-Omni's dialect are translated, with defaults of their models. Chats may request images (``modalities``
with ``image``), as in other open servers. The prompt then consists of the texts of user and system messages, and their
images are the input of a model that edits. Such a model has no memory, so earlier answers are dropped. The answer has
``images`` next to its ``content``, which stays empty: image models write no text. A stream sends all images at once.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

import msgspec

from omnibus.encoding.image import MIME
from omnibus.errors import BadRequest, NotFound
from omnibus.settings import GatewaySettings
from omnibus_gateway.core import ClientRequest, ResumableStream, Router
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, PARSED_BODY, ResponseWriter
from omnibus_gateway.media.files import MadeFiles, file_url
from omnibus_gateway.openai import chat_response, images, vllm_omni
from omnibus_gateway.openai.chat_request import AssistantMessage, ChatRequest, ImageConfig, UserMessage
from omnibus_gateway.openai.chat_response import DONE, ChatCompletionImage, ChatCompletionImageUrl
from omnibus_gateway.openai.images import ImageRequest
from omnibus_gateway.openai.messages import MediaRef, convert_messages, parse_chat_media
from omnibus_gateway.openai.parse import parse_chat
from omnibus_gateway.openai.vllm_omni import HEADER, NAME, OmniRequest, translate_request
from omnibus_gateway.pricing.meter import NO_PRICES, PriceOptions, UsageMeter
from omnibus_gateway.tasks.chat import Chat, Chats
from omnibus_gateway.tasks.chat_response import render_choices, render_completion, stream_choices, stream_events
from omnibus_gateway.tasks.images import (
    CLIENT_PARAM_NAMES,
    EditImages,
    GeneratedImages,
    ImageTasks,
    check_image_count,
    collect_images,
)
from omnibus_gateway.tasks.resolve import rename_params


class DialectTranslator:
    """Looks up the output modalities of models in the plan."""

    def __init__(self, router: Router, chat: Chat, painters: ImageTasks) -> None:
        self._router = router
        self._chat = chat
        self._painters = painters

    def __call__(self, dialect: str, body: bytes) -> OmniRequest:
        """Read a request in the dialect ``dialect``. Raises ``BadRequest`` and ``NotFound``."""
        if dialect.strip().lower() != NAME:
            raise BadRequest(f"The dialect must be {NAME}. Omit the header for OpenAI's.", param=HEADER)
        return translate_request(body, self._model_outputs)

    def _model_outputs(self, name: str) -> tuple[str, list[str]]:
        model = name or self._only_model()
        try:
            speaks = self._router.get_model(self._router.base_model(model)).has_talker
        except NotFound:  # an app's model, or unknown
            return model, ["text"]
        return model, ["image"] if self._makes_only_images(model) else ["text", "audio"] if speaks else ["text"]

    def _only_model(self) -> str:
        plan = self._router.plan
        names = [name for name, model in plan.models.items() if not model.apps] if plan is not None else []
        if len(names) != 1:
            raise BadRequest("Missing required parameter: 'model'. There is more than one, or none yet.", param="model")
        return names[0]

    def _makes_only_images(self, model: str) -> bool:
        """Return True if ``model`` generates images and does not chat."""
        try:
            self._chat.get_task(model)
        except BadRequest:
            try:
                self._painters.get_task(model)
            except BadRequest:
                return False
            return True
        return False


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
            async with run.until_end():
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
    shapes = request.encoders
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


_DIALECT = vllm_omni.HEADER.encode()


class ChatRoute(PostRoute):
    """Answers chats; ``draw`` handles those that request images, ``translate`` other dialects."""

    reads_prices = True

    def __init__(
        self, settings: GatewaySettings, chat: Chat, draw: ImageChatRoute, translate: DialectTranslator
    ) -> None:
        super().__init__(settings)
        self._chat = chat
        self._draw = draw
        self._translate = translate
        #: The chats of apps as well, once there are any: their models are registered at run time.
        self.chats: Chats = chat

    def handle_request(self, post: PostRequest, sending: ResponseWriter) -> Awaitable[None]:
        dialect = post.headers.get(_DIALECT)
        chat_request: ChatRequest
        if dialect is not None:
            chat_request = self._translate(dialect.decode("latin-1"), post.body)
        else:
            chat_request = post.scope.get(PARSED_BODY) or parse_chat_media(post.body)
        sending.model = chat_request.model
        prices = post.prices
        if chat_request.wants_images:
            return self._draw.answer_chat(chat_request, post, sending)
        resumable_stream = None
        if chat_request.stream and self._chat.continuations is not None and not prices.quote:
            resumable_stream = self._chat.continuations.begin_stream(chat_request, post.headers, post.body, post.pinned)
        return self.answer_chat(chat_request, post.pinned, sending, resumable_stream, prices)

    async def answer_chat(
        self,
        chat_request: ChatRequest,
        pinned_path: str,
        sending: ResponseWriter,
        resumable_stream: ResumableStream | None,
        prices: PriceOptions = NO_PRICES,
    ) -> None:
        """Answer ``chat_request`` by its ``pinned_path`` path; with ``resumable_stream`` another gateway can continue
        it.

        ``prices`` can request the usage in the answer, and limit its price.
        """
        chat = self._chat
        try:
            run = sending.run = self.chats.open_request(chat_request.model, chat_request.seed, pinned_path)
            if prices is not NO_PRICES:
                chat.check_price(run, prices)
            meter = chat.meter if prices.usage else None
            if chat_request.choice_count > 1:
                await self._answer_choices(run, chat_request, sending, meter)
                return
            got = run.open_answer()
            if resumable_stream is not None:
                resumable_stream.attach_request(run)
            async with run.until_end():
                prepared_chat = await chat.prepare_request(run, chat_request)
                output = await self.chats.begin_answer(run, prepared_chat)
                if chat_request.stream:
                    extra = await resumable_stream.save_record(run) if resumable_stream is not None else None
                    parts = stream_events(run, chat_request, output, got, chat.spoken, resumable_stream, meter)
                    await sending.send_stream(parts, extra=extra)
                    return
                body = await render_completion(run, chat_request, output, got, chat.spoken, meter)
            await sending.send_body(JSON, body)
        finally:
            if resumable_stream is not None:
                resumable_stream.close()

    async def _answer_choices(
        self, run: ClientRequest, chat_request: ChatRequest, sending: ResponseWriter, meter: UsageMeter | None
    ) -> None:
        if not run.model:
            raise BadRequest(f"{chat_request.model} is an app and supports one choice: omit n", param="n")
        got = run.open_choices(chat_request.choice_count)
        async with run.until_end():
            outputs = await self._chat.begin_choices(run, await self._chat.prepare_request(run, chat_request))
            if chat_request.stream:
                await sending.send_stream(stream_choices(run, chat_request, outputs, got, meter))
                return
            body = await render_choices(run, chat_request, outputs, got, meter)
        await sending.send_body(JSON, body)


class ResumeRoute(PostRoute):
    """Continues a streamed answer after the last event that its client received."""

    def __init__(self, settings: GatewaySettings, chat: Chat, route: ChatRoute) -> None:
        super().__init__(settings)
        self._continuations = chat.continuations
        self._route = route

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        if self._continuations is None:
            raise NotFound("this gateway does not continue streamed answers")
        last = post.headers.get(b"last-event-id", b"").decode("latin-1")
        resumable_stream, record = await self._continuations.adopt_stream(post.scope["path_params"]["token"], last)
        chat_request = msgspec.structs.replace(parse_chat(record.body), seed=record.seed)
        sending.model = chat_request.model
        await self._route.answer_chat(chat_request, record.path, sending, resumable_stream)
