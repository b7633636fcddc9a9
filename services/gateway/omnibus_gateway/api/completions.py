"""``POST /v1/completions``: raw texts that a model continues, each as a separate request."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from omnibus.settings import GatewaySettings
from omnibus_gateway.core import AnswerAccumulator, ClientRequest
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.openai import completions
from omnibus_gateway.openai.chat_response import DONE
from omnibus_gateway.openai.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    PromptChoice,
)
from omnibus_gateway.pricing.meter import refuse_price_options
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.chat_response import open_output_streams
from omnibus_gateway.tasks.prepared_chat import PreparedChat
from omnibus_gateway.tasks.resolve import rename_params

#: The names that clients use for parameters of a chat.
_CLIENT_PARAM_NAMES = {"messages": "prompt"}


@dataclass(slots=True)
class _OpenChoice:
    """One running completion: its request and the received answer."""

    choice: PromptChoice
    run: ClientRequest
    got: AnswerAccumulator
    told: int = 0  # tokens whose probabilities were sent to the client
    offset: int = 0  # characters of these tokens

    def new_logprobs(self) -> CompletionLogprobs:
        """Return the probabilities that arrived since the last call."""
        fresh = self.got.logprobs[self.told :]
        choice_logprobs = completions.completion_logprobs(fresh, self.offset)
        self.told += len(fresh)
        self.offset += sum(len(each.token) for each in fresh)
        return choice_logprobs


class CompletionRoute(PostRoute):
    """Completes texts with models of the plan."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, chat: Chat) -> None:
        super().__init__(settings)
        self._chat = chat

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        request = completions.parse_completion_request(post.body)
        sending.model = request.model
        with rename_params(_CLIENT_PARAM_NAMES):
            open_choices = [
                self._open_choice(request, each, post.pinned) for each in completions.prompt_choices(request)
            ]
            sending.run = open_choices[0].run
            if len(open_choices) > 1:
                refuse_price_options(post.headers)
            self._chat.check_price(open_choices[0].run, post.prices)
            frames: asyncio.Queue[tuple[_OpenChoice, str, bool]] = asyncio.Queue()
            await self._answer(request, open_choices, frames, sending)

    def _open_choice(self, request: CompletionRequest, choice: PromptChoice, pinned_path: str) -> _OpenChoice:
        run = self._chat.open_request(request.model, choice.seed, pinned_path)
        got = run.open_answer()
        return _OpenChoice(choice, run, got)

    async def _answer(
        self,
        request: CompletionRequest,
        open_choices: list[_OpenChoice],
        frames: "asyncio.Queue[tuple[_OpenChoice, str, bool]]",
        sending: ResponseWriter,
    ) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._complete(request, each, frames)) for each in open_choices]
                if request.stream:
                    await sending.send_stream(_stream_events(request, open_choices, frames))
                else:
                    await asyncio.gather(*tasks)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if not request.stream:
            await sending.send_body(JSON, completions.encode_completion(_whole_answer(request, open_choices)))

    async def _complete(
        self,
        request: CompletionRequest,
        open_choice: _OpenChoice,
        frames: "asyncio.Queue[tuple[_OpenChoice, str, bool]]",
    ) -> None:
        """Generate one completion; puts its text into ``frames``, and finally its end."""
        run, prompt = open_choice.run, open_choice.choice.prompt
        async with run.until_end():
            usual = self._chat.usual_sampling(request.model)
            prepared_chat = PreparedChat(request.to_chat(), [request.plain_prompt(prompt)], [], usual=usual)
            output = await self._chat.begin_answer(run, prepared_chat)
            async for batch in run.read_outputs(open_output_streams(output)):
                if text := "".join(item.data.get("text", "") for _, item in batch):
                    frames.put_nowait((open_choice, text, False))
        frames.put_nowait((open_choice, "", True))


async def _stream_events(
    request: CompletionRequest,
    open_choices: list[_OpenChoice],
    frames: "asyncio.Queue[tuple[_OpenChoice, str, bool]]",
) -> AsyncIterator[bytes]:
    base, left = _base_answer(request, open_choices), len(open_choices)
    usage = bool(request.stream_options and request.stream_options.include_usage)
    if request.echo:
        yield b"".join(_encode_choice(base, CompletionChoice(str(each.choice.prompt), each.choice.place, None))
                       for each in open_choices)  # fmt: skip
    while left:
        each, text, over = await frames.get()
        reason = each.got.finish if over else None
        left -= over
        choice_logprobs = each.new_logprobs() if request.logprobs is not None else None
        yield _encode_choice(base, CompletionChoice(text, each.choice.place, reason, choice_logprobs))  # type: ignore[arg-type]
    if usage:
        total_usage = completions.add_usages((each.choice, each.got.usage()) for each in open_choices)
        yield completions.encode_completion_event(msgspec.structs.replace(base, usage=total_usage))
    yield DONE


def _encode_choice(base: Completion, choice: CompletionChoice) -> bytes:
    return completions.encode_completion_event(msgspec.structs.replace(base, choices=[choice]))


def _base_answer(request: CompletionRequest, open_choices: list[_OpenChoice]) -> Completion:
    """Return the answer without its choices."""
    run = open_choices[0].run
    return Completion(f"cmpl-{run.id}", int(run.created), request.model, [])


def _whole_answer(request: CompletionRequest, open_choices: list[_OpenChoice]) -> Completion:
    choices = [
        CompletionChoice(
            (str(each.choice.prompt) if request.echo else "") + each.got.text,
            each.choice.place,
            each.got.finish,  # type: ignore[arg-type]
            each.new_logprobs() if request.logprobs is not None else None,
        )
        for each in open_choices
    ]
    total_usage = completions.add_usages((each.choice, each.got.usage()) for each in open_choices)
    return msgspec.structs.replace(_base_answer(request, open_choices), choices=choices, usage=total_usage)
