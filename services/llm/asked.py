"""What every engine of a thinker reads from a job, and what it says at the end."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.contract import Item, Job
from services.llm.sequence import Step
from services.llm.speech import Speech
from services.llm.text import Reply


async def items(job: Job) -> list[Item]:
    """The embeddings of the job's media, in order of appearance."""
    found = await job.value("items") or []
    if not isinstance(found, list) or not all(isinstance(item, Item) for item in found):
        raise BadRequest("items must be a list of embeddings", param="items")
    return found


def messages(value: Any) -> list[dict[str, Any]]:
    """``value`` as messages: a JSON list, or an ``Item`` of its UTF-8 bytes."""
    if isinstance(value, Item) and value.array is not None:
        try:
            value = json.loads(value.array.tobytes())
        except ValueError:
            raise BadRequest("messages are not UTF-8 JSON; send a JSON list", param="messages") from None
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise BadRequest("messages must be a list of objects with role and content", param="messages")
    return value


def limit(context: int, length: int, wanted: int | None) -> int:
    """Most tokens to generate after a prompt of ``length`` tokens. Raises ``ContextTooLong`` and ``BadRequest``."""
    left = context - length
    if left <= 0:
        raise ContextTooLong(
            f"the prompt has {length} tokens and the model's context {context}; send a shorter prompt",
            param="messages",
        )
    if wanted is not None and wanted > left:
        raise BadRequest(
            f"max_tokens is {wanted}, but after a prompt of {length} tokens the model's context of "
            f"{context} leaves {left}; send max_tokens of at most {left}",
            param="max_tokens",
        )
    return left if wanted is None else wanted


def usage(prompt: int, completion: int, items: Sequence[Item]) -> dict[str, int]:
    """What a request has cost, in tokens."""
    media: Counter[str] = Counter()
    for item in items:
        media[item.data.get("modality", "")] += 0 if item.array is None else item.array.shape[0]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "image_tokens": media["image"],
        "audio_tokens": media["audio"],
        "video_tokens": media["video"],
    }


async def answer(job: Job, take: Callable[[], Awaitable[Sequence[Step]]], reply: Reply, speech: Speech | None) -> None:
    """Send what the engine generates until it ends. ``take`` waits for the next tokens."""
    while reply.finish is None:
        for step in await take():
            if reply.finish is None:  # after a stop string the engine was one step ahead
                reply.add(step.token, step.finish)
                if speech is not None:
                    speech.add(step.side)
        if speech is not None:
            await speech.send(reply.spoken)
        chunk = reply.chunk()
        if chunk is not None:
            await job.send("text", chunk)
    if speech is not None:
        speech.close(reply.finish)
