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
from services.gateway.http.exchange import JSON, about, while_connected
from services.gateway.http.response import Sending
from services.gateway.http.route import base, conduct, pinned, serve
from services.gateway.media.files import Files, url
from services.gateway.openai import chat_response, images, vllm_omni
from services.gateway.openai.chat_request import AssistantMessage, ChatRequest, ImageConfig, UserMessage
from services.gateway.openai.chat_response import Picture, PictureUrl
from services.gateway.openai.chat_stream import DONE
from services.gateway.openai.images import ImageRequest
from services.gateway.openai.messages import MediaRef, conversation
from services.gateway.request.request import Run
from services.gateway.tasks.chat import Chat
from services.gateway.tasks.images import Drawn, Painters, check_count, drawn, renamed

_CALLED = {"size": "image_config.size", "steps": "image_config.steps", "prompt": "messages", "image": "messages"}


class DrawnChats:
    """Answers chats with pictures."""

    def __init__(self, settings: GatewaySettings, chat: Chat, painters: Painters, files: Files) -> None:
        self._settings = settings
        self._chat = chat
        self._painters = painters
        self._files = files

    async def __call__(self, request: ChatRequest, scope: Scope, receive: Receive, send: Send) -> None:
        sending = Sending(send)
        work = self._answer(request, pinned(scope), base(scope, self._settings), sending)
        await serve(sending, while_connected(scope, receive, work))

    async def _answer(self, request: ChatRequest, path: str, base: str, sending: Sending) -> None:
        task = self._painters.task(request.model)
        sending.model = request.model
        prompt, refs = _asked(request)
        wanted = _wanted(request, prompt)
        try:
            check_count(request.model, task, len(refs))
            if wanted.url:
                self._files.require("response_format")
            pictures = await self._chat.media(refs)
            run = self._painters.open(request.model, request.seed, path)
            async with conduct(run, sending):
                output = await self._painters.paint(run, wanted.wish() | {"count": True}, pictures)
                made = await drawn(run, output, wanted.format, wanted.compression)
                shown = [await self._picture(index, file, wanted, base) for index, file in enumerate(made.files)]
        except OmnibusError as error:
            called = renamed(error)
            called.param = _CALLED.get(called.param, called.param)
            raise called from None
        await _send(sending, run, request, made, shown)

    async def _picture(self, index: int, file: bytes, wanted: ImageRequest, base: str) -> Picture:
        kind = MIME[wanted.format]
        if wanted.url:
            return Picture(PictureUrl(url(base, await self._files.put(file, kind))), index)
        return Picture(PictureUrl(f"data:{kind};base64,{base64.b64encode(file).decode()}"), index)


async def _send(sending: Sending, run: Run, request: ChatRequest, made: Drawn, shown: list[Picture]) -> None:
    used = chat_response.usage(prompt_text=made.text, image=made.pixels // 256)
    shapes = vllm_omni.shapes(request)
    id, model, created = f"chatcmpl-{run.id}", run.model, int(run.created)
    text = "" if request.writes else None
    if not request.stream:
        body = shapes.drawn(id=id, model=model, created=created, text=text, usage=used, images=shown)
        await sending.whole(200, JSON, body, about(run))
        return
    frames = shapes.stream(id, model, created, include_usage=request.wants_usage)
    await sending.begin(about(run))
    for frame in (frames.role(text), frames.images(shown), frames.finish("stop"), frames.usage(used)):
        await sending.part(frame)
    await sending.end(DONE)


def _asked(request: ChatRequest) -> tuple[str, list[MediaRef]]:
    """The prompt, and the pictures that go with it."""
    if not any(isinstance(message, UserMessage) for message in request.messages):
        raise BadRequest("Image generation needs at least one user message.", param="messages")
    messages, refs = conversation(request)
    for ref in refs:
        if ref.modality != "image":
            raise BadRequest(f"Pictures are made of text and pictures, not of {ref.modality}.", param=ref.param)
    said = []
    for place, (given, message) in enumerate(zip(request.messages, messages, strict=True)):
        words = _words(message["content"])
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


def _words(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def _wanted(request: ChatRequest, prompt: str) -> ImageRequest:
    config = request.image_config or ImageConfig()
    seed = None if request.seed is None else request.seed % 2**62
    said = {name: getattr(config, name) for name in config.__struct_fields__}
    wanted = ImageRequest(model=request.model, prompt=prompt, seed=seed, **said)
    try:
        images.check(wanted)
    except BadRequest as error:
        error.param = f"image_config.{error.param}"
        raise
    return wanted
