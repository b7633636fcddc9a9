"""The engine of an LLM component: messages and media embeddings in, text out, and rows for a talker.

Base of the runners of one loaded language model.

They can switch roles without loading it again.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from omnibus.bus.messages import BatchCounts
from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus.executor.settings import ExecutorSettings
from omnibus_llm.engine.model import ThinkerCore
from omnibus_llm.engine.sampler import TokenLogprobs
from omnibus_llm.engine.sequence import TokenStep
from omnibus_llm.runners.detokenize import Reply
from omnibus_llm.runners.request import close_counted, open_reply, open_request, prefill_prompt
from omnibus_llm.runners.talker_inputs import SpeechWriter, SpokenTokens


class LanguagePart:
    """Base class of the runners of a language model.

    ``component`` is the component that a subclass runs, and ``decodes`` is True if it decodes answers.
    """

    _by_component: ClassVar[dict[str, type["LanguagePart"]]] = {}
    _decodes: ClassVar[bool] = True

    def __init_subclass__(cls, *, component: str = "", decodes: bool = True) -> None:
        if component:
            cls._by_component[component] = cls
            cls._decodes = decodes

    def __init__(self, core: ThinkerCore) -> None:
        self._core = core

    def switch_role(self, component: str, settings: ExecutorSettings) -> "LanguagePart":
        """See ``Runner``: every part of a language model has all of it."""
        make_runner = self._by_component.get(component)
        if make_runner is None:
            raise BadRequest(f"{component} is not part of a language model")
        return make_runner(self._core)

    async def load(self) -> None:
        await self._core.load()
        if self._decodes:
            await self._core.engine.start_decoding()

    async def close(self) -> None:
        await self._core.close()

    def stats(self) -> dict[str, Any]:
        return self._core.stats()


#: Most tokens in one message: those of an earlier attempt arrive all at once.
MAX_CHUNK_TOKENS = 256

#: Waits for the next tokens of an answer.
Take = Callable[[], Awaitable[Sequence[TokenStep]]]


class ThinkRunner(LanguagePart, component="thinker"):
    """A ``Runner`` for LLMs.

    Inputs: ``messages`` (JSON list, or an ``Item`` of its UTF-8 bytes), ``items``, ``params``
    (``TextGenerationParams``), ``voice``. ``items`` is a list of ``Item``, embeddings [n, H] with their meta, in order
    of appearance. Outputs: ``text``, streamed, and for a talker ``prompt``, ``layout`` and ``rows``, streamed.
    """

    @property
    def busy(self) -> float:
        return self._core.busy

    @property
    def keeps_prompts(self) -> bool:
        """See ``Runner``."""
        return self._core.keeps_prompts

    @property
    def batch_counts(self) -> BatchCounts:
        return self._core.batch_counts

    async def run(self, job: Job) -> None:
        async with open_request(self._core, job) as request:
            if request.params.count_only:
                close_counted(job, request.counts)
                return
            if request.params.prefill_only:
                with self._core.engine.admit(request.sequence):
                    await prefill_prompt(request.sequence, job, request.counts)
                return
            sequence, speech = request.sequence, None
            spoken_tokens = None if sequence.voice is None else SpokenTokens()
            reply = open_reply(self._core.thinker, request.params, request.thinking, request.limit, spoken_tokens)
            if spoken_tokens is not None:
                compute_rows = partial(self._core.compute_rows, sequence)
                speech = SpeechWriter(job, spoken_tokens, request.limit, compute_rows, request.layout)
            with self._core.engine.admit(sequence):
                await send_answer(job, sequence.inbox.take_steps, reply, speech)
            job.close("text", {"finish_reason": reply.finish, "usage": reply.usage(request.counts)})


class TextWriter:
    """Writes the text of an answer without speech, as its steps arrive."""

    def __init__(self, job: Job, reply: Reply) -> None:
        self._job = job
        self._reply = reply

    def add_steps(self, steps: Sequence[TokenStep]) -> bool:
        """Take the next steps and send their text; returns True when the answer is complete."""
        reply = self._reply
        for number, step in enumerate(steps, 1):
            if reply.finish is None:
                _add_step(reply, step)
            if not number % MAX_CHUNK_TOKENS:
                self._write_pending()
        self._write_pending()
        return reply.finish is not None

    def _write_pending(self) -> None:
        chunk = self._reply.next_chunk()
        if chunk is not None:
            self._job.write_text("text", chunk)


def _add_step(reply: Reply, step: TokenStep) -> None:
    reply.add(step.token, step.finish)
    if step.logprobs is not None:
        reply.add_logprobs(step.token, step.finish, step.logprobs)


async def send_answer(job: Job, take: Take, reply: Reply, speech: SpeechWriter | None) -> None:
    """Send text and rows until ``reply`` is finished and spoken."""
    is_ended = False
    while not is_ended and (reply.finish is None or (speech is not None and speech.lacks_row)):
        for number, step in enumerate(await take(), 1):
            is_ended = step.finish is not None
            if reply.finish is None:  # after a stop string the engine is one step ahead
                _add_step(reply, step)
            if speech is not None:
                speech.add(step.side)
            if not number % MAX_CHUNK_TOKENS:
                await send_pending(job, reply, speech)
        await send_pending(job, reply, speech)
    if speech is not None:
        await speech.close(reply.finish)


def is_complete(reply: Reply, speech: SpeechWriter | None) -> bool:
    """True if nothing more must be computed for an answer."""
    return reply.finish is not None and (speech is None or speech.is_complete)


async def send_tokens(
    job: Job,
    reply: Reply,
    tokens: Sequence[int],
    finish: str | None,
    speech: SpeechWriter | None,
    logprobs: TokenLogprobs | None = None,
) -> None:
    """Send the text of ``tokens``, and the rows that ``speech`` has.

    The last token may ``finish`` the answer; ``logprobs`` are its own.
    """
    for number, token in enumerate(tokens, 1):
        reply.add(token, finish if number == len(tokens) else None)
        if logprobs is not None and number == len(tokens):
            reply.add_logprobs(token, finish, logprobs)
        if not number % MAX_CHUNK_TOKENS or number == len(tokens):
            await send_pending(job, reply, speech)


async def send_pending(job: Job, reply: Reply, speech: SpeechWriter | None) -> None:
    """Send new rows and text."""
    if speech is not None:
        await speech.send()
    chunk = reply.next_chunk()
    if chunk is not None:
        await job.send_text("text", chunk)
