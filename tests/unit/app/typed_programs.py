"""Programs as app developers write them, for type checkers.

A line of ``READS`` that reveals a type ends with a comment that names the type. A wrong line of ``MISTAKES`` ends with
the comment ``# mistake``. ``FORMER`` is written as apps were before tasks had types.
"""

READS = """
import asyncio
from collections.abc import AsyncIterator
from typing import Any, reveal_type

import numpy as np

from omnibus.task import (
    MLLM, Audio, ChatInput, ChatOutput, CompositeTask, Encode, Media, OnDemand, Stream, TaskInput, TaskOutput,
    Tensor, Tensors, TextChunk, Think, UnitTask, Value, choose, merged, tool,
)
from omnibus.task.library import (
    DrawInput, EditInput, EmbedInput, EncodeInput, ImageGeneration, Say, SayInput, SpeechInput, SpeechParams, ThinkInput,
    VideoGeneration, VideoInput,
)


class SketchInput(TaskInput):
    text: str
    latents: Tensor | None = None
    several: Tensors = Tensors()
    frames: Stream[Tensor] | None = None
    words: Stream[str] | None = None
    style: str | Value[str] = "plain"
    size: Value[int]


class SketchOutput(TaskOutput):
    image: Tensor
    words: Stream[str]
    numbers: Stream[int]
    frames: Stream[Tensor]
    chunks: Stream[TextChunk]
    sound: Stream[Audio]
    title: Value[str]
    counts: OnDemand[Value[dict[str, int]]]
    mask: OnDemand[Tensor]


class Sketch(UnitTask[SketchInput, SketchOutput]):
    scale: int = 1

    async def run(self, given: SketchInput) -> AsyncIterator[dict[str, Any]]:
        reveal_type(given.several)  # list[ndarray[tuple[Any, ...], dtype[Any]]]
        reveal_type(given.style)  # str
        reveal_type(given.size)  # int
        if given.latents is not None:
            reveal_type(given.latents)  # ndarray[tuple[Any, ...], dtype[Any]]
        if given.frames is not None:
            async for frame in given.frames:
                reveal_type(frame)  # ndarray[tuple[Any, ...], dtype[Any]]
        if given.words is not None:
            async for word in given.words:
                reveal_type(word)  # str
        yield {"image": np.ones((2, 2)), "title": given.style, "counts": {"a": given.size}, "mask": np.ones(2)}
        for count in range(2):
            yield {"numbers": count, "words": "word ", "frames": np.ones((1, 2)), "chunks": TextChunk(text="a")}
            yield {"sound": Audio(array=np.ones(4, np.float32))}


class Trace(UnitTask[SketchInput, SketchOutput]):
    def run(self, given: SketchInput) -> SketchOutput:
        if given.words is not None:
            for word in given.words:
                reveal_type(word)  # str
        array = np.ones((1, 2))
        return SketchOutput(
            image=array, words=["a"], numbers=[1], frames=[array], chunks=[TextChunk(text="a")], sound=[Audio(array=array[0])],
            title="traced", counts={}, mask=array,
        )


class Album(CompositeTask[str, SketchOutput]):
    sketch: Sketch = Sketch()
    trace: Trace = Trace()

    async def invoke(self, request: str) -> SketchOutput:
        first = self.sketch.invoke(SketchInput(text=request, size=3))
        reveal_type(first)  # SketchOutput
        reveal_type(first.image)  # Tensor
        reveal_type(first.words)  # Stream[str]
        reveal_type(first.title)  # Value[str]
        reveal_type(await first.image)  # ndarray[tuple[Any, ...], dtype[Any]]
        reveal_type(await first.title)  # str
        reveal_type(await first.counts)  # dict[str, int]
        reveal_type(await first.mask)  # ndarray[tuple[Any, ...], dtype[Any]]
        reveal_type(await first.numbers)  # list[int]
        reveal_type(await first.frames)  # ndarray[tuple[Any, ...], dtype[Any]]
        reveal_type(await first.chunks)  # str
        reveal_type(await first.sound)  # Audio
        title, _ = await asyncio.gather(first.title, first.image)
        reveal_type(title)  # str
        reveal_type(choose([1, 2]))  # int
        reveal_type(await tool(len, request))  # int
        reveal_type(await tool(asyncio.sleep, 0, request))  # str
        second = self.sketch.invoke(SketchInput(text=request, size=3))
        async for chunk in second.chunks.transform(lambda part: part.text):
            reveal_type(chunk)  # str
        async for frame in second.frames:
            reveal_type(frame)  # ndarray[tuple[Any, ...], dtype[Any]]
        return self.trace.invoke(
            SketchInput(
                text=await first.title, latents=first.image, several=[first.image], words=second.words,
                style=first.title, size=4,
            )
        )


class Pair(CompositeTask[str, dict[str, Stream[TextChunk]]]):
    sketch: Sketch = Sketch()

    def invoke(self, request: str) -> dict[str, Stream[TextChunk]]:
        other = self.sketch.invoke(SketchInput(text=request, size=1))
        seen = self.sketch.invoke(
            SketchInput(text=request, size=2, latents=other.image, several=[other.image], frames=other.frames, words=other.words)
        )
        return {"a": seen.chunks, "b": self.sketch.invoke(SketchInput(text=request, size=3)).chunks}


ALBUM, PAIR = Album(), Pair()


async def serve(request: str) -> AsyncIterator[str]:
    reveal_type(await ALBUM(request))  # SketchOutput
    reveal_type(await (await ALBUM(request)).title)  # str
    reveal_type(await ALBUM.trace(SketchInput(text=request, size=1)))  # SketchOutput
    async for name, chunk in merged(await PAIR(request)):
        reveal_type(name)  # str
        reveal_type(chunk)  # TextChunk
        yield chunk.text


async def read_library(chat: MLLM, images: ImageGeneration, videos: VideoGeneration, think: Think) -> ChatOutput:
    answer = await chat(ChatInput.of("hi", max_tokens=3))
    reveal_type(answer)  # ChatOutput
    reveal_type(answer.text)  # Stream[TextChunk]
    reveal_type(answer.audio)  # Stream[Audio] | None
    reveal_type(await answer.text)  # str
    reveal_type((await images(DrawInput(prompt="a boat"))).images)  # list[Tensor]
    reveal_type((await videos(VideoInput(prompt="a boat"))).frames)  # Stream[Tensor]
    reveal_type(await think(ThinkInput(messages=[{"role": "user", "content": "hi"}])))  # ThinkOutput
    return ChatOutput(text=answer.text.transform(lambda chunk: chunk.text), audio=answer.audio)


async def give_media_and_speech(eye: Encode, mouth: Say, drawn: Tensor, words: Value[str], request: ChatInput) -> None:
    placed = await Media.of(np.zeros((2, 2, 3), np.uint8))
    for media in (placed, drawn, *request.media):
        reveal_type(await eye(EncodeInput(media=media)))  # EncodeOutput
    reveal_type(ChatInput.of("hi", media=[placed, drawn]))  # ChatInput
    params: SpeechParams = {"max_codes": 9, "temperature": 0.0}
    for text in ("hi", words):
        reveal_type(await mouth(SayInput(text=text, voice="low", params=params)))  # SayOutput
    EmbedInput(text=["one", "two"])
    SpeechInput(text="hi", voice="low", params={"seed": 3})
    EditInput(prompt="red", image=placed)
"""

MISTAKES = """
from collections.abc import AsyncIterator
from typing import Any

from omnibus.task import (
    ChatInput, ChatOutput, CompositeTask, Encode, Stream, TaskInput, TaskOutput, Tensor, Think, UnitTask, Value, merged,
)
from omnibus.task.library import EmbedInput, EncodeInput, SayInput, TextEncodeInput, ThinkInput


class NoteInput(TaskInput):
    text: str
    words: Stream[int] | None = None


class NoteOutput(TaskOutput):
    words: Stream[str]
    image: Tensor
    title: Value[str]


class Note(UnitTask[NoteInput, NoteOutput]):
    async def run(self, given: NoteInput) -> AsyncIterator[dict[str, Any]]:
        if given.words is not None:
            print(await given.words)  # mistake
        yield {"title": given.txt}  # mistake


class Other(UnitTask[NoteInput, NoteOutput]):
    async def run(self, given: NoteInput) -> int:  # mistake
        return 3


class Notes(CompositeTask[str, NoteOutput]):
    note: Note = Note()
    llm: Think = Think(model="m", component="thinker")
    eye: Encode

    async def invoke(self, request: str) -> NoteOutput:
        made = self.note.invoke(NoteInput(text=request))
        for _ in made.words:  # mistake
            print("a word")
        print(made.image.sum())  # mistake
        print(made.titel)  # mistake
        print(len(await made.title) + await made.title)  # mistake
        self.note.invoke(NoteInput())  # mistake
        self.note.invoke(NoteInput(text=3))  # mistake
        self.note.invoke(NoteInput(text=request, words=made.words))  # mistake
        self.note.invoke(NoteInput(text=request, hue="red"))  # mistake
        self.llm.invoke(ThinkInput(messages="hello"))  # mistake
        self.llm.invoke(ThinkInput(params={"max_tokens": 3}))  # mistake
        self.llm.invoke(ThinkInput(messages=[], params={"max_token": 3}))  # mistake
        self.llm.invoke(EncodeInput(media=None))  # mistake
        EncodeInput(media=b"bytes")  # mistake
        EncodeInput(media="photo.png")  # mistake
        SayInput(text=3, voice="low")  # mistake
        SayInput(text="hi", voice="low", params={"max_tokens": 3})  # mistake
        EmbedInput(text=3)  # mistake
        TextEncodeInput(prompt=3)  # mistake
        ChatInput.of("hi", max_tokns=3)  # mistake
        return await made.words  # mistake


class Wrong(CompositeTask[ChatInput, ChatOutput]):
    def invoke(self, request: int) -> ChatOutput:  # mistake
        return ChatOutput(text="hi")


NOTES = Notes()  # mistake


async def serve(request: ChatInput) -> AsyncIterator[str]:
    made = await NOTES(request)  # mistake
    async for word in made.words:
        yield word + 1  # mistake


async def read_stream(request: ChatInput) -> None:
    print(await serve(request))  # mistake
    print(await merged({}))  # mistake
"""

FORMER = """
from typing import Any

from omnibus.task import ChatInput, ChatOutput, CompositeTask, Think
from omnibus.task.library import ThinkInput


class Former(CompositeTask):
    model: Think = Think(model="qwen3-tiny", component="thinker")

    def invoke(self, request: ChatInput) -> ChatOutput:
        return ChatOutput(text=self.model.invoke(ThinkInput(messages=request.messages, params=request.params)).text)


class Awaiting(CompositeTask):
    inner: Former = Former()

    async def invoke(self, question: Any) -> Any:
        return {"text": await self.inner.invoke(question).text}


FORMER = Former()


async def serve(request: ChatInput) -> ChatOutput:
    answer: ChatOutput = await FORMER(request)
    return answer
"""
