"""Images of a response, from tool calls or as its only output.

Each image is a separate request to an image model, with a seed that is derived from the response's seed.
"""

import base64
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from omnibus.errors import BadRequest, NotFound
from omnibus.structured.calls import CallPart
from omnibus_gateway.core import ClientRequest, Router
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_response import build_usage
from omnibus_gateway.openai.images import ImageRequest
from omnibus_gateway.openai.messages import convert_messages
from omnibus_gateway.openai.responses.events import AnswerEvents, Event
from omnibus_gateway.openai.responses.items import (
    IMAGE_TOOL,
    ImageGenerationCall,
    ImageGenerationTool,
)
from omnibus_gateway.openai.responses.request import ResponseRequest
from omnibus_gateway.pricing.meter import NO_PRICES, PriceOptions
from omnibus_gateway.pricing.quotes import ImageAllowance
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.images import (
    CLIENT_PARAM_NAMES,
    GeneratedImages,
    ImageTasks,
    collect_images,
    encode_image,
    preview_interval,
    step_count,
)
from omnibus_gateway.tasks.resolve import rename_params, request_class

#: Limit of the images of one response; ``max_tool_calls`` may lower it.
MAX_IMAGES = 8
MAX_SEED = 2**62 - 1
#: Names of a drawing's fields for clients, if an image is the only output.
_ALONE_PARAMS = {**CLIENT_PARAM_NAMES, "prompt": "input"}


class ImageDrawer:
    """Generates the images of one response with ``model`` and ``tool``.

    ``most`` limits the calls that are executed; further calls are ignored. ``alone``: an image is the only output.
    """

    def __init__(
        self, painters: ImageTasks, model: str, tool: ImageGenerationTool, most: int = 1, *, alone: bool = False
    ) -> None:
        self.alone = alone
        self._painters = painters
        self._model = model
        self._tool = tool
        self._most = most
        self.allowed: ImageAllowance | None = None  # set by the cost limit, if any
        self._calls: dict[int, list[str]] = {}
        self._made: GeneratedImages | None = None

    def open_request(self, seed: int | None, pinned_path: str) -> ClientRequest:
        """Open the request of a response that is one image. Raises like ``ImageTasks.open_request``."""
        return self._painters.open_request(self._model, seed, pinned_path, NO_PRICES)

    async def choose_path(self, chat: Chat, run: ClientRequest, request: ChatRequest, prices: PriceOptions) -> str:
        """Choose the path of ``run``, the request of the response, by ``prices``.

        If the answer can call for images, the limit must cover the chat and one image. The number of images is then
        limited to the rest. Raises like ``PriceCheck.choose_path``.
        """
        if not prices.before:
            return run.pinned
        if self.alone:
            with rename_params(_ALONE_PARAMS):
                return await self._painters.choose_path(run, self._image_fields(run.seed, _join_words(request)), prices)
        image = await self._painters.quote_image(self._model, self._image_fields(run.seed, ""))
        path = await chat.choose_path(run, request, prices, image)
        if run.price is not None and run.price.images is not None:
            self.limit_images(run.price.images)
        return path

    def limit_images(self, allowance: ImageAllowance) -> None:
        """Limit the images to ``allowance``, on its path."""
        self._most = min(self._most, allowance.most)
        self.allowed = allowance._replace(most=self._most)

    def forget_calls(self) -> None:
        """Discard the collected calls, because the answer restarts."""
        self._calls.clear()

    def take_call(self, part: CallPart) -> bool:
        """Collect part of a call. Returns False if the call is not one of the image tool."""
        if part.name == IMAGE_TOOL:
            self._calls[part.number] = []
        is_image_call = part.number in self._calls
        if is_image_call:
            self._calls[part.number].append(part.arguments)
        return is_image_call

    async def draw_called(self, run: ClientRequest, events: AnswerEvents) -> AsyncGenerator[list[Event], None]:
        """Generate the images of the calls of ``run``, one after the other. Yields events of ``events``."""
        run.release_admission()  # its own work is done, and the image requests may wait for the same turn
        for index, arguments in enumerate([*self._calls.values()][: self._most]):
            prompt = _read_prompt("".join(arguments))
            if not prompt:
                yield [*events.begin_image(), *events.fail_image()]
                continue
            drawing = self._open_drawing(run, index)
            try:
                async with drawing.until_end(), aclosing(self._draw(drawing, prompt, events)) as steps:
                    async for image_events in steps:
                        yield image_events
            finally:
                if drawing.segments:
                    run.called.append(drawing.id)

    def _open_drawing(self, run: ClientRequest, index: int) -> ClientRequest:
        """Open the request of an image that ``run`` called for."""
        path = self.allowed.path if self.allowed is not None else ""
        drawing = self._painters.open_request(self._model, (run.seed + index) & MAX_SEED, path, NO_PRICES)
        drawing.deadline = min(drawing.deadline, run.deadline)
        drawing.caller = run.id
        return drawing

    async def draw_alone(
        self, run: ClientRequest, request: ChatRequest, events: AnswerEvents
    ) -> AsyncGenerator[list[Event], None]:
        """Answer ``request`` with an image by ``run``.

        Raises ``BadRequest`` for an input without text or with media.
        """
        begin = events.begin
        with rename_params(_ALONE_PARAMS):
            async with aclosing(self._draw(run, _join_words(request), events)) as steps:
                async for image_events in steps:
                    yield [*begin(), *image_events]
                    begin = list
        generated_images = self._made
        usage = (
            build_usage(prompt_text=generated_images.text, image=generated_images.pixels // 256)
            if generated_images is not None
            else build_usage()
        )
        yield events.finish("stop", usage, time.time())

    async def _draw(self, run: ClientRequest, prompt: str, events: AnswerEvents) -> AsyncGenerator[list[Event], None]:
        task = self._painters.get_task(self._model)
        image_request = self._tool.to_image_request(self._model, prompt)
        wish = self._image_fields(run.seed, prompt)
        wish["previews"] = preview_interval(step_count(task, wish), self._tool.partial_images or 0)
        wish |= {"progress": True} if "progress" in request_class(task).model_fields else {}
        output = await self._painters.generate_images(run, wish)
        for progress in output.progress:
            async for _ in progress:
                break  # errors of the model precede the first event: wait for the first step
        yield events.begin_image()
        index = 0
        for previews in output.previews:
            async for preview in previews:
                if preview.array is not None:
                    size = image_request.extent or (preview.array.shape[1] * 8, preview.array.shape[0] * 8)
                    file = await encode_image(preview.array, image_request.format, image_request.compression, size)
                    yield events.add_partial_image(file, index, _about(image_request, size))
                    index += 1
        generated_images = self._made = await collect_images(
            run, output, image_request.format, image_request.compression
        )
        result = base64.b64encode(generated_images.files[0]).decode()
        yield events.finish_image(
            ImageGenerationCall(result=result, revised_prompt=prompt, **_about(image_request, generated_images.size))
        )

    def _image_fields(self, seed: int, prompt: str) -> dict[str, Any]:
        """Return the fields of the image task's request, except for its previews."""
        fields = self._tool.to_image_request(self._model, prompt).task_fields() | {"seed": seed & MAX_SEED}
        return self._painters.add_defaults(self._model, fields) | {"count": True}


class ImageDrawers:
    """Selection of a response's image model among those of the plan."""

    def __init__(self, router: Router, chat: Chat, painters: ImageTasks) -> None:
        self._router = router
        self._chat = chat
        self._painters = painters

    def choose(self, request: ResponseRequest) -> ImageDrawer | None:
        """Choose the drawer for ``request``; None if it needs no images.

        Raises ``NotFound``, and ``BadRequest`` if there is no image model, or several and the tool has no ``model``.
        """
        plan, tool = self._router.plan, request.image_tool
        names = [name for name, model in plan.models.items() if not model.apps] if plan is not None else []
        if request.model in names and not self._chats(request.model) and self._draws(request.model):
            if any(not isinstance(each, ImageGenerationTool) for each in request.tools or ()):
                raise BadRequest(f"{request.model} is an image model and calls no functions: omit them.", param="tools")
            return ImageDrawer(self._painters, request.model, tool or ImageGenerationTool(), alone=True)
        if tool is None or request.tool_choice == "none":
            return None
        most = min(MAX_IMAGES, request.max_tool_calls or MAX_IMAGES)
        return ImageDrawer(self._painters, self._choose_model(request, tool, names), tool, most)

    def _choose_model(self, request: ResponseRequest, tool: ImageGenerationTool, names: Sequence[str]) -> str:
        """Return the tool's model, else the response's, else the only image model."""
        param = "tools"
        if tool.model is not None:
            if tool.model not in names:
                raise NotFound(f"unknown model {tool.model!r}: omit it, or set it to an image model", param=param)
            self._painters.get_task(tool.model)
            return tool.model
        if request.model in names and self._draws(request.model):
            return request.model
        candidates = [name for name in names if self._draws(name)]
        if len(candidates) != 1:
            there = f"set its 'model' to one of {', '.join(candidates)}" if candidates else "there is no image model"
            raise BadRequest(f"The tool image_generation cannot be used: {there}.", param=param)
        return candidates[0]

    def _chats(self, name: str) -> bool:
        return _has_task(self._chat, name)

    def _draws(self, name: str) -> bool:
        return _has_task(self._painters, name)


def _has_task(tasks: Chat | ImageTasks, name: str) -> bool:
    try:
        tasks.get_task(name)
    except BadRequest:
        return False
    return True


def _about(image_request: ImageRequest, size: tuple[int, int]) -> dict[str, Any]:
    """Return the properties of an image other than its bytes."""
    extent = f"{size[0]}x{size[1]}"
    return {"size": extent, "quality": "auto", "background": "opaque", "output_format": image_request.format}


def _read_prompt(arguments: str) -> str:
    """Return the prompt of a call. Arguments that are not JSON are the prompt itself."""
    try:
        call_arguments = json.loads(arguments)
    except ValueError:
        return arguments.strip()
    prompt = call_arguments.get("prompt") if isinstance(call_arguments, dict) else call_arguments
    return prompt.strip() if isinstance(prompt, str) else ""


def _join_words(request: ChatRequest) -> str:
    """Join the text of users and systems: image models have no history."""
    messages, refs = convert_messages(request)
    if refs:
        raise BadRequest(
            f"{request.model} accepts only text here: send images to /v1/images/edits.", param=refs[0].param or "input"
        )
    texts = [_words(message["content"]) for message in messages if message["role"] not in ("assistant", "tool")]
    prompt = "\n".join(each for each in texts if each.strip())
    if not prompt:
        raise BadRequest("The input must describe the image: it has no text.", param="input")
    return prompt


def _words(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)
