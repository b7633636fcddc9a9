"""A voice assistant: it recognizes speech, writes an answer, and speaks each sentence as soon as it is written."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omnibus.app import App
from omnibus.errors import BadRequest
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Think
from omnibus.task.library import (
    RecordingInput,
    SpeechOutput,
    TextToSpeechInput,
    ThinkInput,
    Transcript,
)
from omnibus_real import RecognizeSpeech, SpeakText, SpokenRecording, TextToSpeak

INSTRUCTIONS = "You are a voice assistant. Answer in two short sentences of plain words."

app = App(model="assistant", input_modalities=("text", "audio"), output_modalities=("text", "audio"), voices=("joe",))


class Assistant(CompositeTask[ChatInput, ChatOutput]):
    recognizer: RecognizeSpeech = RecognizeSpeech()
    writer: Think = Think(model="smollm2", component="thinker")
    speaker: SpeakText = SpeakText()

    async def invoke(self, request: ChatInput) -> ChatOutput:
        heard = [await self.recognizer.invoke(SpokenRecording(media=media)).text for media in request.media]
        messages = write_down(request.messages, heard)
        answer = self.writer.invoke(ThinkInput(messages=messages, params=request.params), work=request.prompt)
        if request.speech is None:
            return ChatOutput(text=answer.text)
        return ChatOutput(text=answer.text, audio=self.speaker.invoke(TextToSpeak(chunks=answer.text)).audio)


def write_down(messages: Sequence[Mapping[str, Any]] | Mapping[str, Any], heard: Iterable[str]) -> list[dict[str, Any]]:
    """Return ``messages`` with what was ``heard`` in the place of recordings, after instructions if they have none."""
    if isinstance(messages, Mapping):
        raise BadRequest("the chat is too long: start a new one", param="messages")
    texts = iter(heard)
    written = [{**message, "content": _text_of(message["content"], texts)} for message in messages]
    return written if written[0]["role"] == "system" else [{"role": "system", "content": INSTRUCTIONS}, *written]


def _text_of(content: Any, texts: Iterable[str]) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return " ".join(part["text"] if part["type"] == "text" else next(iter(texts)).strip() for part in content)


ASSISTANT = Assistant()


async def serve(request: ChatInput) -> ChatOutput:
    return await ASSISTANT(request)


async def transcribe(request: RecordingInput) -> Transcript:
    recognized = await ASSISTANT.recognizer(SpokenRecording(media=request.media, params=request.params))
    return Transcript(text=recognized.text)


async def speak(request: TextToSpeechInput) -> SpeechOutput:
    return SpeechOutput(audio=(await ASSISTANT.speaker(TextToSpeak(text=request.string))).audio)
