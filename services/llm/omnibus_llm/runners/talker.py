"""The engine of a talker: rows of a thinker in, codec codes out, while the thinker is still writing.

A thinker sends the rows of the prompt, their positions, and one row per spoken token. The spoken tokens of an answer
are those whose text is in the transcript.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from collections.abc import Sequence as Rows
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.runner import Item, Job, RowWriter
from omnibus_engines.component import ComponentSource
from omnibus_llm.engine.engine import EngineLimits, HostedDecoder
from omnibus_llm.engine.params import CodecGenerationParams, build_sampling, read_params
from omnibus_llm.engine.sampler import Picker
from omnibus_llm.engine.sequence import TokenStep, relay_errors
from omnibus_llm.runners.talk_sequence import SpeechBound, TalkFeed, Talking
from omnibus_models.contract import Code, PrefillInputs, Talker


class _Piece(NamedTuple):
    """Text of a number of ``tokens``: a character may take several of them."""

    tokens: int
    text: str


class SpokenTokens:
    """Matches the tokens of one answer with its transcript, as both grow.

    Tokens ``begin`` to ``end`` are spoken; those before ``begin`` are reasoning. ``rest`` is the part of the transcript
    that no further whole token contains. It exists if a stop string has cut a token in two, or other text follows a
    tool call. Rule: the speech speaks the transcript. transformers 5.19 drops the row of the last token. ``generate``
    of a model that speaks therefore omits the last word of an answer that ``thinker_max_new_tokens`` ends.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []  # of all tokens
        self.begin = 0
        self.end = 0
        self.rest = ""
        self._pieces: deque[_Piece] = deque()  # after ``end``
        self._silent = 0  # last tokens without text yet: part of a character, or a control token

    def add_token(self, token: int, text: str) -> None:
        """Take a token, and the characters that it completes."""
        self.ids.append(token)
        self._silent += 1
        if text:
            self._pieces.append(_Piece(self._silent, text))
            self._silent = 0

    def add_reasoning(self) -> None:
        """Mark all tokens so far as reasoning, or white space after it."""
        if not self.rest and self.end == self.begin:
            self._pieces.clear()
            self._silent = 0
            self.begin = self.end = len(self.ids)

    def add_text(self, text: str) -> None:
        """Take more of the transcript."""
        self.rest += text
        while self._pieces and (size := self._match_length(self._pieces[0].text)) is not None:
            self.rest = self.rest[size:]
            self.end += self._pieces.popleft().tokens

    def _match_length(self, text: str) -> int | None:
        """Return how many characters of ``rest`` are ``text``; None if they differ.

        White space before the first word may be missing from the transcript.
        """
        if self.rest.startswith(text):
            return len(text)
        first = text.lstrip() if self.end == self.begin else ""
        return len(first) if first and self.rest.startswith(first) else None

    def close(self, ended_by_token: bool) -> None:
        """End the answer.

        With ``ended_by_token`` the last token only ended it, and a talker gets no row for it.
        """
        if not self._pieces and not self.rest:
            self.end = len(self.ids)
        if ended_by_token:
            self.end = min(self.end, len(self.ids) - 1)
        if not self.rest.strip():
            self.rest = ""

    @property
    def spoken_ids(self) -> Sequence[int]:
        """The tokens that ``rest`` follows."""
        return self.ids[: self.end]


#: Computes the rows [H] of a text that follows the given first tokens of an answer.
ComputeRows = Callable[[Sequence[int], str], Awaitable[Sequence[np.ndarray]]]


class SpeechWriter:
    """The talker's inputs of one answer.

    ``most`` is the largest number of tokens. ``layout`` int32 [k, S] locates the prompt's rows. It is None if another
    component sent it, and the prompt's rows. ``rows`` [H] are the first ones, if they are known. ``compute_rows``
    computes those of a text that is not in the answer's tokens.
    """

    def __init__(
        self,
        job: Job,
        spoken_tokens: SpokenTokens,
        most: int,
        compute_rows: ComputeRows,
        layout: np.ndarray | None = None,
        rows: Sequence[np.ndarray] = (),
    ) -> None:
        self._job = job
        self._spoken = spoken_tokens
        self._layout = layout
        self._prompt: np.ndarray | None = None
        self._most = most
        self._compute_rows = compute_rows
        self._writer: RowWriter | None = None
        self._rows: list[np.ndarray] = list(rows)
        self._taken = 0  # rows of the first tokens, which were written or skipped

    @property
    def lacks_row(self) -> bool:
        """True while the row of a spoken token is missing.

        The row arrives with the token after it.
        """
        return self._taken + len(self._rows) < self._spoken.end

    @property
    def is_complete(self) -> bool:
        """True if an ended answer needs no more rows."""
        return not (self.lacks_row or self._spoken.rest)

    def add(self, side: np.ndarray | None) -> None:
        """Add the side data of a token: the prompt's rows [S + 3, H] for the first, a row [H] for each other."""
        if side is None:
            return
        if self._layout is not None and self._prompt is None:
            self._prompt = side
        else:
            self._rows.append(side)

    async def send(self) -> None:
        """Send the prompt, once, and the rows of spoken tokens."""
        if self._layout is not None and self._prompt is not None:
            layout, self._layout, prompt = self._layout, None, self._prompt
            await send_prompt(self._job, layout, prompt)
            self._writer = await self._open_writer(self._most, prompt.shape[1])
        ready = max(0, self._spoken.end - self._taken)
        rows, self._rows = self._rows[:ready], self._rows[ready:]
        spoken_rows = rows[max(0, self._spoken.begin - self._taken) :]
        self._taken += len(rows)
        if spoken_rows:
            self._writer = self._writer or await self._open_writer(self._most, spoken_rows[0].shape[0])
            self._writer.write(np.stack(spoken_rows))

    async def close(self, finish: str | None) -> None:
        """Send the rows of the text without tokens, and end."""
        if self._spoken.rest:
            rows = await self._compute_rows(self._spoken.spoken_ids, self._spoken.rest)
            if rows:  # in a separate block: this may take more tokens than the answer has left
                (await self._open_writer(len(rows), rows[0].shape[0])).write(np.stack(rows))
        self._job.close("rows", {"finish": finish})

    async def _open_writer(self, most: int, width: int) -> RowWriter:
        return await self._job.open_rows("rows", max(1, most), width, "float32")


async def send_prompt(job: Job, layout: np.ndarray, prompt: np.ndarray) -> None:
    """Send ``layout`` and the ``prompt``'s rows [S + 3, H]."""
    await job.put("layout", {}, layout)
    await job.put("prompt", {}, prompt)


@dataclass(frozen=True)
class TalkSettings:
    """Limits of one talker.

    ``slots``, ``context``, ``share`` and ``threads`` are as for a thinker. ``first`` is the number of codes, or frames,
    in the first chunk, ``chunk`` in every other; 0 means the preference of the model's vocoder. ``graphs``: see
    ``Steps``. ``seconds`` is the most of one answer. ``token_seconds`` is the most for each token of its text, in
    addition to ``_ANSWER_SECONDS``. 0 means no limit.
    """

    slots: int = 16
    context: int = 0
    share: int = 512
    threads: int = 1
    first: int = 0
    chunk: int = 0
    graphs: bool = True
    seconds: float = 0.0
    token_seconds: float = 0.0


#: Seconds that an answer may take in addition to those of its tokens: a short one starts and ends slowly.
_ANSWER_SECONDS = 3.0


class TalkRunner(HostedDecoder[Talker, Talking]):
    """A ``Runner`` for talkers.

    Inputs: ``prompt`` (rows [S + 3, H]) and ``layout`` ([k, S]) as ``Item``s, ``rows`` (stream of [k, H]), ``voice``,
    ``params`` (``CodecGenerationParams``). Output: ``codes``, streamed, numbers or a list for each frame.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: TalkSettings
    ) -> None:
        source = ComponentSource(component, family, checkpoint, device, dtype)
        limits = EngineLimits(settings.slots, settings.context, settings.share, graphs=settings.graphs)
        super().__init__(source, settings.threads, limits, TalkFeed)
        self._settings = settings

    async def run(self, job: Job) -> None:
        params = read_params(job.inputs.get("params"), CodecGenerationParams)
        stream = job.stream("rows")
        first = await anext(stream, None)
        if first is None or first.array is None:
            job.close("codes", {"finish_reason": "stop"})
            return
        prompt, layout = await job.value("prompt"), await job.value("layout")
        rows, prompt_rows = _copy_rows(first), _copy_rows(prompt)
        voice = str(job.inputs.get("voice") or "")
        prefill = await self._compute(self._start_prefill, prompt_rows, _item_array(layout), rows[0], voice)
        sequence = self._build_sequence(prefill, prompt_rows[-2:].clone(), params, job.seed)
        sequence.add_rows(rows[1:])
        await self._resume_after(sequence, _resumed_frames(job), stream)
        async with self._pump_running(stream, sequence):
            with self.engine.admit(sequence):
                finish = await _send_codes(job, sequence, *self._chunk_sizes)
        job.close("codes", {"finish_reason": finish})

    async def _resume_after(self, sequence: Talking, frames: Rows[Rows[int]], stream: AsyncIterator[Item]) -> None:
        """Start ``sequence`` after ``frames`` of an earlier attempt; waits for their rows."""
        frames = frames[: sequence.limit - 1]
        if not frames:
            return
        while not sequence.has_rows(len(frames)):
            item = await anext(stream, None)
            if item is None:
                sequence.end_rows()
            elif item.array is not None:
                sequence.add_rows(_copy_rows(item))
        inputs = await self._compute(self._embed_frames, frames, sequence.next_rows(len(frames)))
        sequence.resume_frames(frames, inputs)

    def _embed_frames(self, frames: Rows[Rows[int]], rows: Tensor) -> Tensor:
        codes = torch.tensor(frames, device=self.model.device)
        codes = codes if self.model.predictor is not None else codes[:, 0]
        return self.model.step_inputs(codes, rows.to(self.model.device, self.model.dtype))

    @property
    def _chunk_sizes(self) -> tuple[int, int]:
        """Number of codes in the first message, and in every other message."""
        return self._settings.first or self.model.bunch, self._settings.chunk or self.model.bunch

    def _start_prefill(self, prompt: Tensor, layout: np.ndarray, first: Tensor, voice: str) -> PrefillInputs:
        device, dtype = self.model.device, self.model.dtype
        places = torch.tensor(layout, dtype=torch.long, device=device)
        return self.model.start(prompt.to(device, dtype), places, first.to(device, dtype), voice)

    def _build_sequence(
        self, prefill: PrefillInputs, tail: Tensor, params: CodecGenerationParams, seed: int
    ) -> Talking:
        length = prefill.inputs.shape[0]
        most, rate = self.model.max_codes, getattr(self.model, "steps_per_second", 0.0)  # plug-ins may lack it
        if rate and self._settings.seconds:
            most = min(most, max(1, int(rate * self._settings.seconds)))
        limit = min(params.max_codes or most, most, self.context - length)
        if limit <= 0:
            raise ContextTooLong(
                f"the prompt has {length} positions and the talker's context {self.context}; send a shorter prompt",
                param="messages",
            )
        picker = Picker(build_sampling(params, limit, seed), self.model.vocabulary)
        sequence = Talking(prefill, picker, self.model.eos, tail, self._frame_picker(picker))
        if rate and self._settings.token_seconds:
            sequence.bound = SpeechBound(rate * _ANSWER_SECONDS, rate * self._settings.token_seconds)
        return sequence

    def _frame_picker(self, picker: Picker) -> Picker | None:
        if self.model.predictor is None:
            return None
        # Draw differently from the first codes.
        settings = replace(self.model.predictor.sampling, seed=picker.settings.seed + 1)
        return Picker(
            replace(settings, temperature=0.0) if picker.is_greedy else settings, self.model.predictor.vocabulary
        )

    @asynccontextmanager
    async def _pump_running(self, stream: AsyncIterator[Item], sequence: Talking) -> AsyncIterator[None]:
        pump = asyncio.create_task(self._pump_rows(stream, sequence))
        try:
            yield
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump_rows(self, stream: AsyncIterator[Item], sequence: Talking) -> None:
        with relay_errors(sequence.inbox):
            async for item in stream:
                if item.array is not None:  # the thinker's last item has no row
                    sequence.add_rows(_copy_rows(item))
                self.engine.wake()
            sequence.end_rows()
            self.engine.wake()


async def _send_codes(job: Job, sequence: Talking, first: int, every: int) -> str:
    codes: list[Code] = []
    size = first
    while True:
        finish = None
        for step in await sequence.inbox.take_steps():
            finish = step.finish
            codes += [] if finish == "stop" else [_step_code(step)]
        if codes and (finish or len(codes) >= size):
            await job.send("codes", {"codes": codes})
            codes, size = [], every
        if finish:
            return finish


def _resumed_frames(job: Job) -> list[list[int]]:
    """Return the frames of an earlier attempt; a single code is a frame.

    The last frame may have reached the limit, so it is made again.
    """
    return [[code] if isinstance(code, int) else code for code in job.resume_state("codes").get("codes", ())][:-1]


def _step_code(step: TokenStep) -> Code:
    return step.token if step.side is None else [step.token, *step.side.tolist()]


def _copy_rows(item: Any) -> Tensor:
    # A copy: the view of the arena ends with the job, and a step in progress may end a moment later.
    return torch.tensor(_item_array(item))


def _item_array(item: Any) -> np.ndarray:
    if not isinstance(item, Item) or item.array is None:
        raise BadRequest("a talker's input has no tensor; send the request again", param="rows")
    return item.array
