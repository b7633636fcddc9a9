"""Requests to a language model: messages, media embeddings and settings, ready to prefill."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Rows
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import numpy as np

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from omnibus.graph import HANDLE
from omnibus_llm.engine.model import ThinkerCore
from omnibus_llm.engine.params import TextGenerationParams, build_sampling, complete_params, read_params
from omnibus_llm.engine.sampler import Picker
from omnibus_llm.engine.sequence import Thinking
from omnibus_llm.runners.answer_parser import answer_grammar, open_parser, special_tokens
from omnibus_llm.runners.detokenize import Reply, StopRule, open_detokeniser
from omnibus_llm.runners.talker_inputs import SpokenTokens
from omnibus_models.contract import Reader

_NO_TOKENS: dict[int, str] = {}


class ThinkRequest(NamedTuple):
    """One request.

    ``ids`` are those of its prompt, placeholders not expanded. ``layout`` int32 [k, S] locates a talker's rows.
    ``counts`` are its tokens; for ``thinking`` see ``TokenizedPrompt``. The answer has at most ``limit`` tokens.
    """

    params: TextGenerationParams
    sequence: Thinking
    ids: tuple[int, ...]
    layout: np.ndarray
    counts: dict[str, int]
    thinking: bool | None
    limit: int


@asynccontextmanager
async def open_request(core: ThinkerCore, job: Job) -> AsyncIterator[ThinkRequest]:
    """Read the inputs of a think or prefill ``job``: ``messages``, ``items``, ``params``, ``voice``.

    The request starts after the tokens that an earlier attempt generated. Until the block ends, calls with the same
    prompt share it.
    """
    params = await read_text_params(job, core.sampling)
    async with core.use_adapter(params) as adapter:
        with core.prompts.join(job, params.prompt_options, params.prompt_key) as member:
            request = await _read_request(core, job, params)
            sequence = request.sequence
            sequence.adapter = adapter
            if member is not None and sequence.voice is None and not sequence.prefix:
                sequence.member = member
            elif member is not None:
                member.leave_group()
            cached_tokens = 0 if params.count_only else await core.use_kept_prompt(sequence, params.conversation_key)
            if cached_tokens:
                request.counts["cached_tokens"] = cached_tokens
            yield request


async def _read_request(core: ThinkerCore, job: Job, params: TextGenerationParams) -> ThinkRequest:
    voice = _read_voice(core, job, params)
    prompt = await core.tokenize_prompt(await read_messages(job), params)
    items = await read_items(job)
    prefill, layout = await core.assemble_prefill(prompt, items)
    length = prefill.inputs.shape[0]
    script = await core.tokenize_script(params, length)
    requested_tokens = 1 if params.prefill_only else params.max_tokens
    limit = len(script) or core.answer_limit(length, requested_tokens, params.usual_tokens)
    grammar = await core.open_grammar(answer_grammar(core.thinker, params))
    token_limit = limit if script else engine_limit(limit, voice is not None and not params.prefill_only)
    ends = end_tokens(core, params)
    sampling = build_sampling(params, token_limit, job.seed, ends, await core.ban_words(params))
    picker = Picker(sampling, core.thinker.vocabulary, prompt.ids, script, grammar)
    sequence = Thinking(prefill, picker, ends, voice)
    sequence.keeps_slot = voice is not None and may_cut(core.thinker, params)
    await core.resume_after(sequence, resumed_tokens(job, "text"))
    if params.prefill_only:
        sequence.prefill = None  # no talker waits for its rows
    aside = prefill.attention is not None and prefill.attention.answer_rows is not None
    return ThinkRequest(
        params, sequence, prompt.ids, layout, count_tokens(length, items, aside), prompt.thinking, limit
    )


def open_reply(
    reader: Reader,
    params: TextGenerationParams,
    thinking: bool | None,
    limit: int = 0,
    spoken_tokens: SpokenTokens | None = None,
) -> Reply:
    """Return the empty text of an answer to ``params``.

    For ``thinking`` see ``TokenizedPrompt``, for ``limit`` and ``spoken_tokens`` see ``Reply``.
    """
    parser = open_parser(reader, params, thinking)
    special = special_tokens(reader, params) if parser is not None and params.skip_special_tokens else _NO_TOKENS
    detokeniser = open_detokeniser(reader, skip_special=params.skip_special_tokens)
    stops = StopRule(params.stop, params.min_tokens, params.include_stop_str_in_output)
    return Reply(reader.decode_ids, stops, parser, special, detokeniser, limit=limit, speech=spoken_tokens)


def engine_limit(limit: int, speaks: bool) -> int:
    """Return the tokens to generate for an answer of ``limit`` tokens.

    The hidden row of a token arrives with the next one. So the engine generates one more token for a spoken answer,
    which is then discarded.
    """
    return limit + 1 if speaks else limit


def may_cut(reader: Reader, params: TextGenerationParams) -> bool:
    """True if an answer's text may differ from its tokens' text."""
    return bool(params.stop or params.tools or reader.thinks)


def resumed_tokens(job: Job, output: str) -> tuple[int, ...]:
    """Return the tokens of an earlier attempt.

    The last token may have ended the answer, so it is chosen again.
    """
    return tuple(job.resume_state(output).get("ids", ())[:-1])


def close_counted(job: Job, counts: Mapping[str, int]) -> None:
    """End the answer to a request that only counts its tokens."""
    job.close("text", {"finish_reason": "stop", "usage": {**counts, "completion_tokens": 0}})


async def prefill_prompt(sequence: Thinking, job: Job, counts: Mapping[str, int]) -> None:
    """Wait until the prompt is computed and kept, then end ``job``.

    The job has no answer.
    """
    await sequence.inbox.take_steps()
    close_counted(job, counts)


def end_tokens(core: ThinkerCore, params: TextGenerationParams) -> frozenset[int]:
    """Return the tokens that end an answer."""
    return (frozenset() if params.ignore_eos else core.thinker.eos) | frozenset(params.stop_token_ids)


def _read_voice(core: ThinkerCore, job: Job, params: TextGenerationParams) -> str | None:
    """Return the voice of the talker; with ``prefill_only``, of a later one."""
    if not job.has_consumer("prompt") and not (params.prefill_only and job.inputs.get("voice")):
        return None
    if not core.thinker.speaks:
        raise BadRequest("this model has no voice; request text only", param="modalities")
    return str(job.inputs.get("voice") or "")


async def read_text_params(job: Job, sampling: Mapping[str, float]) -> TextGenerationParams:
    """Read ``params``: a JSON object, or an ``Item`` of its UTF-8 bytes.

    Missing values are those of the checkpoint's ``sampling``. Raises ``BadRequest``.
    """
    value = job.inputs.get("params")
    if isinstance(value, dict) and HANDLE in value:
        value = _decode_document(await job.value("params"), "params")
    return read_params(complete_params({} if value is None else value, sampling), TextGenerationParams)


def _decode_document(value: Any, name: str) -> Any:
    """Return the JSON of an ``Item``; other values unchanged. Raises ``BadRequest``."""
    if not isinstance(value, Item) or value.array is None:
        return value
    try:
        return json.loads(value.array.tobytes())
    except ValueError:
        raise BadRequest(f"{name} must be UTF-8 JSON", param=name) from None


async def read_messages(job: Job) -> list[dict[str, Any]]:
    """Read ``messages``: a JSON list, or an ``Item`` of its UTF-8 bytes. Raises ``BadRequest``."""
    value = _decode_document(await job.value("messages"), "messages")
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise BadRequest("messages must be a list of objects with role and content", param="messages")
    return value


async def read_items(job: Job) -> list[Item]:
    """Read ``items``: embeddings in order of appearance. Raises ``BadRequest``."""
    items = await job.value("items") or []
    if not isinstance(items, list) or not all(isinstance(item, Item) for item in items):
        raise BadRequest("items must be a list of embeddings", param="items")
    return items


def count_tokens(prompt: int, items: Rows[Item], aside: bool = False) -> dict[str, int]:
    """Count the tokens of the prompt, and of the media in it.

    Each row of an item is a token; an item for cross-attention (``aside``) is one token.
    """
    media: Counter[str] = Counter()
    for item in items:
        media[item.data.get("modality", "")] += 0 if item.array is None else 1 if aside else item.array.shape[0]
    media_counts = {f"{modality}_tokens": media[modality] for modality in ("image", "audio", "video")}
    return {"prompt_tokens": prompt, **media_counts}
