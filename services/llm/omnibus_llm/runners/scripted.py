"""Simulated language models with scripted answers.

The answers pass through the parsers of real models, token by token. In a model in two halves, prefill has the scripts
and chooses the answer, and decode writes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from omnibus.executor.sim.answers import ScriptedAnswer, ToolFormatName, ToolParams, find_answer
from omnibus.executor.sim.distributions import Count, Draw
from omnibus.executor.sim.language import Answer, SimPrompt, SimulatedDecode, SimulatedPrefill, SimulatedThinker
from omnibus.executor.sim.profile import SimComponent
from omnibus.executor.sim.runner import SimulatedRunner
from omnibus.graph import HANDLE
from omnibus_llm.runners.answer_parser import THINK, THINK_END, AnswerParser
from omnibus_llm.runners.detokenize import Reply
from omnibus_models.tool_calls import ToolFormat, find_format

#: Key of the answer that prefill chose, in ``start``.
_SCRIPT = "script"
#: Keys of chunks with text of an answer.
_TEXTS = ("text", "reasoning", "calls")


class ScriptParams(ToolParams, frozen=True):
    """Request parameters that scripted answers obey; all others are ignored."""

    max_tokens: Count | None = None
    stop: tuple[str, ...] = ()
    count_only: bool = False


class _Script(msgspec.Struct, frozen=True):
    """An answer in transfer from prefill to decode; ``chars`` is the number of characters of a token."""

    answer: ScriptedAnswer
    tool_format: ToolFormatName
    chars: int


class AnswerChunks(NamedTuple):
    """An answer with all its chunks: one for each token, None while its text is held back."""

    chunks: Sequence[dict[str, Any] | None]
    finish: str

    @property
    def tokens(self) -> int:
        return len(self.chunks)

    def text_chunk(self, begin: int, end: int) -> dict[str, Any]:
        """Return the chunks of these tokens as one; empty without text to send."""
        text_chunks = [chunk for chunk in self.chunks[begin:end] if chunk is not None]
        if not text_chunks:
            return {}
        texts = {key: "".join([chunk.get(key, "") for chunk in text_chunks]) for key in _TEXTS}
        ids = [id for chunk in text_chunks for id in chunk["ids"]]
        return {"text": texts.pop("text"), "ids": ids, **{key: text for key, text in texts.items() if text}}


class ScriptedThinker(SimulatedThinker):
    """A ``SimulatedThinker`` that returns a matching answer of its profile, if any."""

    scripted = True

    async def choose_answer(self, job: Job, prompt: SimPrompt, draw: Draw) -> Answer:
        """Return the answer. Raises ``BadRequest`` if calls are required and none matches."""
        params = await _read_params(job)
        scripted_answer = _choose(self.part, prompt, params)
        if scripted_answer is None:
            return await super().choose_answer(job, prompt, draw)
        limit = self._token_limit(prompt.tokens, params.max_tokens)
        return render_answer(scripted_answer, params, find_format(self.part.tool_format), int(self.part.chars), limit)


class ScriptedPrefill(SimulatedPrefill):
    """A ``SimulatedPrefill`` that chooses a matching scripted answer for ``ScriptedDecode``."""

    scripted = True

    async def choose_script(self, job: Job, prompt: SimPrompt) -> dict[str, Any]:
        """Return the script. Raises as ``ScriptedThinker.choose_answer``."""
        scripted_answer = _choose(self.part, prompt, await _read_params(job))
        if scripted_answer is None:
            return {}
        return {_SCRIPT: msgspec.to_builtins(_Script(scripted_answer, self.part.tool_format, int(self.part.chars)))}


class ScriptedDecode(SimulatedDecode):
    """A ``SimulatedDecode`` that writes the answer that its prefill chose."""

    async def choose_answer(self, job: Job, start: Mapping[str, Any], draw: Draw) -> Answer:
        """Return the answer. Raises ``BadRequest`` for a ``start`` that no ``ScriptedPrefill`` made."""
        if _SCRIPT not in start:
            return await super().choose_answer(job, start, draw)
        try:
            script = msgspec.convert(start[_SCRIPT], _Script)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the scripted answer is invalid: {error}", param="start") from None
        params = await _read_params(job)
        limit = self._token_limit(start["length"], params.max_tokens)
        return render_answer(script.answer, params, find_format(script.tool_format), script.chars, limit)


#: Runners of components of these kinds.
SCRIPTED_KINDS: Mapping[str, type[SimulatedRunner]] = {
    "think": ScriptedThinker,
    "prefill": ScriptedPrefill,
    "decode": ScriptedDecode,
}


def _choose(part: SimComponent, prompt: SimPrompt, params: ScriptParams) -> ScriptedAnswer | None:
    """Return the scripted answer to ``prompt``; None without one. Raises ``BadRequest`` if calls are required."""
    if not part.answers or params.count_only:
        return None
    scripted_answer = find_answer(part.answers, prompt.last, params)
    if scripted_answer is None and params.tool_choice == "required":
        raise BadRequest(
            "no scripted answer to this message calls a tool that the request offers, but tool_choice requires a "
            "call; add one to `answers` of the profile",
            param="tool_choice",
        )
    return scripted_answer


def render_answer(
    answer: ScriptedAnswer, params: ScriptParams, format: ToolFormat, size: int, limit: int | None
) -> AnswerChunks:
    """Return ``answer`` as a model writes it, in tokens of ``size`` characters.

    There are at most ``limit`` tokens.
    """
    text = write_text(answer, format)
    pieces = [text[begin : begin + max(1, size)] for begin in range(0, len(text), max(1, size))]
    last, finish = len(pieces) - 1, "stop"
    if limit is not None and limit < len(pieces):
        last, finish = limit - 1, "length"
    calls = format.open_parser() if params.tools else None
    parser = AnswerParser(bool(answer.reasoning), False, calls) if answer.reasoning or calls is not None else None
    # The last piece is text, unlike a token that ends an answer, so the number of pieces ends the reply.
    reply = Reply(lambda ids: "".join([pieces[id] for id in ids]), params.stop, parser, limit=last + 1)
    chunks = []
    for token in range(last + 1):
        reply.add(token, None)
        chunks.append(reply.next_chunk())
        if reply.finish is not None:
            break
    return AnswerChunks(chunks, "stop" if reply.finish == "stop" else finish)


def write_text(answer: ScriptedAnswer, format: ToolFormat) -> str:
    """Return all text that a model writes for ``answer``: reasoning, text, and calls in its ``format``."""
    thought = f"{THINK}\n{answer.reasoning}\n{THINK_END}\n\n" if answer.reasoning else ""
    calls = [format.write_call(call.name, call.arguments) for call in answer.calls]
    return thought + "\n".join([*([answer.text] if answer.text else []), *calls])


async def _read_params(job: Job) -> ScriptParams:
    value: Any = job.inputs.get("params")
    if isinstance(value, Mapping) and HANDLE in value:
        value = await job.value("params")
    try:
        if isinstance(value, Item) and value.array is not None:
            return msgspec.json.decode(value.array.tobytes(), type=ScriptParams)
        return msgspec.convert(value or {}, ScriptParams)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"params are invalid: {error}", param="params") from None
