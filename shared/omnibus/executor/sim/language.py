"""Simulated language models: thinkers, whole and split into prefill and decode."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol
from zlib import crc32

import msgspec

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Item, Job
from omnibus.executor.sim import device
from omnibus.executor.sim.answers import message_text
from omnibus.executor.sim.distributions import Count, Draw
from omnibus.executor.sim.runner import SimulatedRunner, blank_array, read_params
from omnibus.executor.sim.speech import SimTalkerInputs, send_prompt

#: Words of the answers. They have no meaning, and are the same for the same seed and messages.
WORDS = (
    "a", "bird", "of", "blue", "sky", "sings", "over", "green", "hills", "while", "slow", "rivers", "carry", "light",
    "to", "sea",
)  # fmt: skip


class SimThinkParams(msgspec.Struct, frozen=True):
    """Request parameters that determine an answer's length; all others are ignored."""

    max_tokens: Count | None = None
    ignore_eos: bool = False
    count_only: bool = False


class SimPrompt(NamedTuple):
    """A prompt: its tokens, media tokens by modality, a hash of its content, its last message."""

    tokens: int
    media: Counter[str]
    content: int
    last: Mapping[str, Any] = MappingProxyType({})

    @property
    def usage_counts(self) -> dict[str, int]:
        named = {f"{modality}_tokens": self.media[modality] for modality in ("image", "audio", "video")}
        return {"prompt_tokens": self.tokens, **named}


class Answer(Protocol):
    """Interface of an answer that is known before its first token."""

    @property
    def tokens(self) -> int: ...

    @property
    def finish(self) -> str: ...

    def text_chunk(self, begin: int, end: int) -> dict[str, Any]:
        """Return the chunk of tokens ``begin`` to ``end``; empty without anything to send."""


class SimAnswer(NamedTuple):
    """Answer that is chosen before its first token: length, finish reason, words."""

    tokens: int
    finish: str
    start: int
    stride: int

    def text_chunk(self, begin: int, end: int) -> dict[str, Any]:
        ids = [(self.start + at * self.stride) % len(WORDS) for at in range(begin, end)]
        return {"text": "".join([f"{WORDS[id]} " for id in ids]), "ids": ids}


class SimulatedLanguageModel(SimulatedRunner):
    """Base of the simulated language models: prompts, answers, and text step by step."""

    needs: ClassVar[tuple[str, ...]] = ("batch", "step")
    steps = True

    async def read_prompt(self, job: Job) -> SimPrompt:
        """Return the tokens of ``messages`` and ``items``. Raises ``BadRequest`` for invalid ones."""
        value = await job.value("messages")
        body = value.array.tobytes() if isinstance(value, Item) and value.array is not None else _encode(value)
        messages = _parse_messages(body)
        characters = sum(len(message_text(message)) for message in messages)
        media: Counter[str] = Counter()
        for item in _check_items(await job.value("items")):
            media[str(item.data.get("modality", ""))] += 0 if item.array is None else item.array.shape[0]
        text = max(1, round(characters / self.part.chars))
        return SimPrompt(text + media.total(), media, crc32(body), messages[-1] if messages else {})

    def draw_answer(self, job: Job, prompt: int, draw: Draw) -> SimAnswer:
        """Choose an answer. Raises ``ContextTooLong`` and ``BadRequest`` as a model with that context would."""
        told = read_params(job, SimThinkParams)
        limit = self._token_limit(prompt, told.max_tokens)
        wanted = self.part.steps_size.draw_size(draw)
        cut = limit is not None and (told.ignore_eos or wanted > limit)
        tokens = limit if cut and limit is not None else wanted
        return SimAnswer(
            tokens,
            "length" if cut else "stop",
            draw.integer_below(len(WORDS)),
            1 + 2 * draw.integer_below(len(WORDS) // 2),
        )

    def _token_limit(self, prompt: int, wanted: int | None) -> int | None:
        context = self._place.context
        if not context:
            return wanted
        left = context - prompt
        if left <= 0:
            raise ContextTooLong(
                f"the prompt has {prompt} tokens and the model's context {context}; send a shorter prompt",
                param="messages",
            )
        if wanted is not None and wanted > left:
            raise BadRequest(
                f"max_tokens is {wanted}, but after a prompt of {prompt} tokens the model's context of {context} "
                f"leaves {left}; send max_tokens of at most {left}",
                param="max_tokens",
            )
        return left if wanted is None else wanted

    async def write_answer(self, job: Job, answer: Answer, tokens: int, draw: Draw, counts: dict[str, int]) -> None:
        """Send the text of ``answer`` at the device's pace, and talker rows.

        Tokens of an earlier attempt are prefilled with the prompt, except for the last one of the answer.
        """
        if read_params(job, SimThinkParams).count_only:
            job.close("text", {"finish_reason": "stop", "usage": {**counts, "completion_tokens": 0}})
            return
        resumed = min(len(job.resume_state("text").get("ids", ())), answer.tokens - 1)
        sequence = device.SimSequence(
            tokens + resumed, self.jitter_factor(draw), limit=answer.tokens - resumed, every=self._chunk
        )
        speech = SimTalkerInputs(job, tokens, answer.tokens, self.part.width) if job.has_consumer("rows") else None
        sent = 0
        with self._machine.admit_work(self.lane, sequence) as ticket:
            while sent < answer.tokens:
                await ticket.wait_for_update()
                begun, sent = sent, resumed + sequence.done
                if speech is not None:
                    await speech.send_rows(sent)
                if chunk := answer.text_chunk(begun, sent):
                    await job.send_text("text", chunk)
        if speech is not None:
            job.close("rows", {"finish": answer.finish})
        job.close("text", {"finish_reason": answer.finish, "usage": {**counts, "completion_tokens": answer.tokens}})


class SimulatedThinker(SimulatedLanguageModel):
    """Reads ``messages``, ``items`` and ``params``, makes ``text``.

    For a talker, it also makes ``prompt``, ``layout`` and ``rows``.
    """

    async def run(self, job: Job) -> None:
        prompt = await self.read_prompt(job)
        draw = self.make_draw(job, prompt.content)
        answer = await self.choose_answer(job, prompt, draw)
        await self.write_answer(job, answer, prompt.tokens, draw, prompt.usage_counts)

    async def choose_answer(self, job: Job, prompt: SimPrompt, draw: Draw) -> Answer:
        """Return the answer to ``prompt``. Raises the errors of ``draw_answer``."""
        return self.draw_answer(job, prompt.tokens, draw)


class SimulatedPrefill(SimulatedLanguageModel):
    """Reads a thinker's inputs, makes ``cache`` [tokens, width] and ``start``.

    ``start`` contains ``length`` and token counts. For a talker, it also makes ``prompt`` and ``layout``.
    """

    needs = ("batch",)
    steps = False

    async def run(self, job: Job) -> None:
        prompt = await self.read_prompt(job)
        draw = self.make_draw(job, prompt.content)
        script = await self.choose_script(job, prompt)
        await self.serve_pass(prompt.tokens, draw)
        if job.has_consumer("prompt"):
            await send_prompt(job, prompt.tokens, self.part.width)
        start = {"length": prompt.tokens, "content": prompt.content, **script, **prompt.usage_counts}
        await job.put("start", start)
        await job.put("cache", {}, blank_array((prompt.tokens, self.part.width), self.part.dtype))

    async def choose_script(self, job: Job, prompt: SimPrompt) -> dict[str, Any]:
        """Return the fields of ``start`` for a scripted answer; empty without one."""
        return {}


class SimulatedDecode(SimulatedLanguageModel):
    """Reads ``cache``, ``start`` and ``params``, makes ``text``, and ``rows`` for a talker."""

    needs = ("step",)

    async def run(self, job: Job) -> None:
        await job.value("cache")
        start = await job.value("start")
        about = start.data if isinstance(start, Item) else start
        if not isinstance(about, dict) or type(about.get("length")) is not int:
            raise BadRequest("start must say the prompt's length", param="start")
        draw = self.make_draw(job, about.get("content", 0))
        counts = {key: value for key, value in about.items() if key.endswith("_tokens")}
        answer = await self.choose_answer(job, about, draw)
        await self.write_answer(job, answer, about["length"], draw, counts)

    async def choose_answer(self, job: Job, start: Mapping[str, Any], draw: Draw) -> Answer:
        """Return the answer after the prefill's ``start``. Raises the errors of ``draw_answer``."""
        return self.draw_answer(job, start["length"], draw)


_encode = msgspec.json.Encoder().encode


def _parse_messages(body: bytes) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(body, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BadRequest("messages must be a JSON list of objects with role and content", param="messages") from None


def _check_items(value: Any) -> list[Item]:
    items = value or []
    if not isinstance(items, list) or not all(isinstance(item, Item) for item in items):
        raise BadRequest("items must be a list of embeddings", param="items")
    return items
