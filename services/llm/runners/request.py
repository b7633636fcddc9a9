"""Requests to a language model: messages, media embeddings and settings, ready to be prefilled."""

import json
from collections import Counter
from collections.abc import Sequence as Rows
from typing import Any, NamedTuple

import numpy as np

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from services.llm.engine.model import Core
from services.llm.engine.params import ThinkParams, read, sampling
from services.llm.engine.sampler import Picker
from services.llm.engine.thinker_feed import Thinking


class Asked(NamedTuple):
    """One request. ``ids`` are its prompt's, placeholders not expanded; ``layout`` int32 [k, S] says a
    talker where its rows are; ``counts`` are its tokens."""

    params: ThinkParams
    sequence: Thinking
    ids: tuple[int, ...]
    layout: np.ndarray
    counts: dict[str, int]


async def ask(core: Core, job: Job, *, resumes: bool = True) -> Asked:
    """Read the inputs of a think or prefill ``job``: ``messages``, ``items``, ``params``, ``voice``.

    One that ``resumes`` begins behind what an earlier attempt has generated.
    """
    params = read(job.inputs.get("params"), ThinkParams)
    voice = _voice(core, job)
    prompt = await core.prompt(await read_messages(job))
    items = await read_items(job)
    prefill, layout = await core.assemble(prompt, items)
    length = prefill.inputs.shape[0]
    script = await core.script(params, length)
    limit = len(script) or core.limit(length, params.max_tokens)
    picker = Picker(sampling(params, limit, job.seed), core.thinker.vocabulary, prompt.ids, script)
    sequence = Thinking(prefill, picker, ends(core, params), voice)
    if resumes:
        await core.resume_after(sequence, given(job, "text"))
    aside = prefill.attention is not None and prefill.attention.kept is not None
    return Asked(params, sequence, prompt.ids, layout, counts(length, items, aside))


def given(job: Job, output: str) -> tuple[int, ...]:
    """Tokens that an earlier attempt generated. The last one may have ended the answer, so it is chosen again."""
    return tuple(job.resume(output).get("ids", ())[:-1])


def ends(core: Core, params: ThinkParams) -> frozenset[int]:
    """The tokens that end an answer."""
    return frozenset() if params.ignore_eos else core.thinker.eos


def _voice(core: Core, job: Job) -> str | None:
    if not job.wants("prompt"):
        return None
    if not core.thinker.speaks:
        raise BadRequest("this model has no voice; ask for text only", param="modalities")
    return str(job.inputs.get("voice") or "")


async def read_messages(job: Job) -> list[dict[str, Any]]:
    """``messages``: a JSON list, or an ``Item`` of its UTF-8 bytes. Raises ``BadRequest``."""
    value = await job.value("messages")
    if isinstance(value, Item) and value.array is not None:
        try:
            value = json.loads(value.array.tobytes())
        except ValueError:
            raise BadRequest("messages are not UTF-8 JSON; send a JSON list", param="messages") from None
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise BadRequest("messages must be a list of objects with role and content", param="messages")
    return value


async def read_items(job: Job) -> list[Item]:
    """``items``: embeddings in order of appearance. Raises ``BadRequest``."""
    items = await job.value("items") or []
    if not isinstance(items, list) or not all(isinstance(item, Item) for item in items):
        raise BadRequest("items must be a list of embeddings", param="items")
    return items


def counts(prompt: int, items: Rows[Item], aside: bool = False) -> dict[str, int]:
    """Tokens of the prompt, and of the media in it: one for each row, or one for an item that is looked at aside."""
    media: Counter[str] = Counter()
    for item in items:
        media[item.data.get("modality", "")] += 0 if item.array is None else 1 if aside else item.array.shape[0]
    named = {f"{modality}_tokens": media[modality] for modality in ("image", "audio", "video")}
    return {"prompt_tokens": prompt, **named}
