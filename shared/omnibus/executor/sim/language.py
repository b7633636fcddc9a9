"""Simulated language models: thinkers, whole and split into prefill and decode."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

import msgspec

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Item, Job
from omnibus.executor.sim import device
from omnibus.executor.sim.distributions import Count, Draw
from omnibus.executor.sim.runner import Simulated, blank, params
from omnibus.executor.sim.speech import Speech, begin

#: What an answer says. The words mean nothing, and are the same for the same seed and messages.
WORDS = (
    "a", "bird", "of", "blue", "sky", "sings", "over", "green", "hills", "while", "slow", "rivers", "carry", "light",
    "to", "sea",
)  # fmt: skip


class ThinkParams(msgspec.Struct, frozen=True):
    """Request parameters that determine an answer's length; all others are ignored."""

    max_tokens: Count | None = None
    ignore_eos: bool = False


class Prompt(NamedTuple):
    """A prompt: all its tokens, its media tokens by modality, and a number that stands for the content."""

    tokens: int
    media: Counter[str]
    content: int

    @property
    def counts(self) -> dict[str, int]:
        named = {f"{modality}_tokens": self.media[modality] for modality in ("image", "audio", "video")}
        return {"prompt_tokens": self.tokens, **named}


class Answer(NamedTuple):
    """An answer that is decided before its first token: how long, why it ends, what it says."""

    tokens: int
    finish: str
    start: int
    stride: int

    def chunk(self, begin: int, end: int) -> dict[str, Any]:
        ids = [(self.start + at * self.stride) % len(WORDS) for at in range(begin, end)]
        return {"text": "".join([f"{WORDS[id]} " for id in ids]), "ids": ids}


class Language(Simulated):
    """Base of the simulated language models: prompts, answers, and text that comes step by step."""

    needs: ClassVar[tuple[str, ...]] = ("batch", "step")
    steps = True

    async def prompt(self, job: Job) -> Prompt:
        """The tokens of ``messages`` and ``items``. Raises ``BadRequest`` for what is neither."""
        value = await job.value("messages")
        body = value.array.tobytes() if isinstance(value, Item) and value.array is not None else _encode(value)
        characters = _characters(_messages(body))
        media: Counter[str] = Counter()
        for item in _items(await job.value("items")):
            media[str(item.data.get("modality", ""))] += 0 if item.array is None else item.array.shape[0]
        text = max(1, round(characters / self.part.chars))
        return Prompt(text + media.total(), media, crc32(body))

    def answer(self, job: Job, prompt: int, draw: Draw) -> Answer:
        """Raises ``ContextTooLong`` and ``BadRequest`` as a model with that context would."""
        told = params(job, ThinkParams)
        limit = self._limit(prompt, told.max_tokens)
        wanted = self.part.length.draw(draw)
        cut = limit is not None and (told.ignore_eos or wanted > limit)
        tokens = limit if cut and limit is not None else wanted
        return Answer(tokens, "length" if cut else "stop", draw.below(len(WORDS)), 1 + 2 * draw.below(len(WORDS) // 2))

    def _limit(self, prompt: int, wanted: int | None) -> int | None:
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

    async def write(self, job: Job, answer: Answer, tokens: int, draw: Draw, counts: dict[str, int]) -> None:
        """The text of ``answer`` as the device makes it, and rows for a talker where one follows.

        Tokens that an earlier attempt has made are prefilled with the prompt, but for the last one of the answer.
        """
        resumed = min(len(job.resume("text").get("ids", ())), answer.tokens - 1)
        sequence = device.Sequence(
            tokens + resumed, self.jitter(draw), limit=answer.tokens - resumed, every=self._chunk
        )
        speech = Speech(job, tokens, answer.tokens, self.part.width) if job.wants("rows") else None
        sent = 0
        with self._machine.admit(self.lane, sequence) as ticket:
            while sent < answer.tokens:
                await ticket.news()
                begun, sent = sent, resumed + sequence.done
                if speech is not None:
                    await speech.send(sent)
                await job.send("text", answer.chunk(begun, sent))
        if speech is not None:
            job.close("rows", {"finish": answer.finish})
        job.close("text", {"finish_reason": answer.finish, "usage": {**counts, "completion_tokens": answer.tokens}})


class Think(Language):
    """Reads ``messages``, ``items`` and ``params``, gives ``text``; for a talker ``prompt``, ``layout``, ``rows``."""

    async def run(self, job: Job) -> None:
        prompt = await self.prompt(job)
        draw = self.draw(job, prompt.content)
        await self.write(job, self.answer(job, prompt.tokens, draw), prompt.tokens, draw, prompt.counts)


class Prefill(Language):
    """Reads what a thinker reads, gives ``cache`` [tokens, width] and ``start`` (``length`` and token counts); for a
    talker ``prompt`` and ``layout``."""

    needs = ("batch",)
    steps = False

    async def run(self, job: Job) -> None:
        prompt = await self.prompt(job)
        draw = self.draw(job, prompt.content)
        await self.serve(prompt.tokens, draw)
        if job.wants("prompt"):
            await begin(job, prompt.tokens, self.part.width)
        await job.put("start", {"length": prompt.tokens, "content": prompt.content, **prompt.counts})
        await job.put("cache", {}, blank((prompt.tokens, self.part.width), self.part.dtype))


class Decode(Language):
    """Reads ``cache``, ``start`` and ``params``, gives ``text``, and ``rows`` for a talker."""

    needs = ("step",)

    async def run(self, job: Job) -> None:
        await job.value("cache")
        start = await job.value("start")
        about = start.data if isinstance(start, Item) else start
        if not isinstance(about, dict) or type(about.get("length")) is not int:
            raise BadRequest("start must say the prompt's length", param="start")
        draw = self.draw(job, about.get("content", 0))
        counts = {key: value for key, value in about.items() if key.endswith("_tokens")}
        await self.write(job, self.answer(job, about["length"], draw), about["length"], draw, counts)


_encode = msgspec.json.Encoder().encode


def _messages(body: bytes) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(body, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BadRequest("messages must be a JSON list of objects with role and content", param="messages") from None


def _characters(messages: Sequence[dict[str, Any]]) -> int:
    found = 0
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            found += len(text) if isinstance(text, str) else 0
    return found


def _items(value: Any) -> list[Item]:
    items = value or []
    if not isinstance(items, list) or not all(isinstance(item, Item) for item in items):
        raise BadRequest("items must be a list of embeddings", param="items")
    return items
