"""Conversion of the streams of several answers to one HTTP response: JSON, or interleaved events."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from omnibus.task import ChatOutput
from omnibus_gateway.dispatch.streams import ItemStream, merge_streams
from omnibus_gateway.openai import chat_response
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_stream import DONE, ChatStream
from omnibus_gateway.pricing.meter import UsageMeter
from omnibus_gateway.request.choices_accumulator import ChoicesAccumulator
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.chat_response import (
    ACCEPTED_STREAM,
    AcceptanceStream,
    encode_chunk,
    open_event_stream,
)
from omnibus_gateway.tasks.output_streams import as_item_stream


async def render_choices(
    run: ClientRequest,
    request: ChatRequest,
    outputs: Sequence[ChatOutput],
    got: ChoicesAccumulator,
    meter: UsageMeter | None = None,
) -> bytes:
    """Build the body of a ``chat.completion`` with several answers; a ``meter`` adds their total price."""
    async for batch in merge_streams(_open_streams(outputs)):
        for name, item in batch:
            got.add_text(int(name), item.data)
    if meter is not None:
        got.price = await meter.measure_request(run.segments)
    id = f"chatcmpl-{run.id}"
    choices = [
        chat_response.build_choice(
            id,
            each.text,
            None,
            each.finish,  # type: ignore[arg-type]
            each.structured_parts(logprobs=bool(request.logprobs)),
            place,
        )
        for place, each in enumerate(got.choices)
    ]
    return chat_response.encode_choices(
        id=id,
        model=run.model_name,
        created=int(run.created),
        choices=choices,
        usage=got.usage(),
        fingerprint=f"epoch-{run.epoch}",
    )


async def stream_choices(
    run: ClientRequest,
    request: ChatRequest,
    outputs: Sequence[ChatOutput],
    got: ChoicesAccumulator,
    meter: UsageMeter | None = None,
) -> AsyncIterator[bytes]:
    """Yield the body of a streamed completion with several answers; ``index`` is the answer of an event.

    The first events are sent when all executors have accepted the request, or with earlier output. ``run`` ends before
    the last event. With a ``meter``, the stream contains the usage and its price. Raises any error of the answers.
    """
    streams = [open_event_stream(run, request, priced=meter is not None, place=place) for place in range(len(outputs))]
    writers = [_ChoiceWriter(request, stream, place, got) for place, stream in enumerate(streams)]
    head = [writer.stream.role() for writer in writers]
    acceptance, parts = AcceptanceStream(), _open_streams(outputs)
    if run.notify_when_accepted(acceptance.mark_accepted):
        parts[ACCEPTED_STREAM] = acceptance
    async for batch in merge_streams(parts):
        frames, head = head, []
        acceptance.end()
        for name, item in batch:
            if name != ACCEPTED_STREAM:
                frames += writers[int(name)].write(item.data)
        yield b"".join(frames)
    if meter is not None:
        got.price = await meter.measure_request(run.segments)
    run.end("done")
    ends = [writer.close() for writer in writers]
    yield b"".join([*head, *ends, writers[0].stream.usage(got.usage()), DONE])


class _ChoiceWriter:
    """Event writer of one of several answers."""

    def __init__(self, request: ChatRequest, stream: ChatStream, place: int, got: ChoicesAccumulator) -> None:
        self.stream = stream
        self._place = place
        self._got = got
        self._logprobs = bool(request.logprobs)
        self._logged = 0  # tokens whose probabilities were sent
        self._ended = False

    def write(self, data: dict[str, Any]) -> list[bytes]:
        """Encode the next chunk of its text as events."""
        self._got.add_text(self._place, data)
        got = self._got.choices[self._place]
        frames = [encode_chunk(self.stream, self.stream.text, data)]
        if self._logprobs and (fresh := got.logprobs[self._logged :]):
            self._logged += len(fresh)
            frames.append(self.stream.logprobs(fresh))
        return [*frames, self.close()] if "usage" in data else frames

    def close(self) -> bytes:
        """Return the last event of the answer; b"" if it was sent."""
        self._ended, was_ended = True, self._ended
        return b"" if was_ended else self.stream.finish(self._got.choices[self._place].finish)  # type: ignore[arg-type]


def _open_streams(outputs: Sequence[ChatOutput]) -> dict[str, ItemStream]:
    return {str(place): as_item_stream("text", output.text) for place, output in enumerate(outputs)}
