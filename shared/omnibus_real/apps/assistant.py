"""A voice assistant: it recognizes speech, writes an answer, and speaks each sentence as soon as it is written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        transcripts = [await self.recognizer.invoke(SpokenRecording(media=media)).text for media in request.media]
        messages = insert_transcripts(request.messages, transcripts)
        answer = self.writer.invoke(ThinkInput(messages=messages, params=request.params), work=request.prompt)
        if request.speech is None:
            return ChatOutput(text=answer.text)
        return ChatOutput(text=answer.text, audio=self.speaker.invoke(TextToSpeak(chunks=answer.text)).audio)


def insert_transcripts(
    messages: Sequence[Mapping[str, Any]] | Mapping[str, Any], transcripts: Iterable[str]
) -> list[dict[str, Any]]:
    """Return ``messages`` with ``transcripts`` in the place of recordings, after instructions."""
    if isinstance(messages, Mapping):
        raise BadRequest("the chat is too long: start a new one", param="messages")
    left = iter(transcripts)
    texts = [{**message, "content": _text_of(message.get("content"), left)} for message in messages]
    return texts if texts[0]["role"] == "system" else [{"role": "system", "content": INSTRUCTIONS}, *texts]


def _text_of(content: Any, transcripts: Iterator[str]) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return " ".join(part["text"] if part["type"] == "text" else next(transcripts).strip() for part in content)


ASSISTANT = Assistant()


async def serve(request: ChatInput) -> ChatOutput:
    return await ASSISTANT(request)


async def transcribe(request: RecordingInput) -> Transcript:
    speech = await ASSISTANT.recognizer(SpokenRecording(media=request.media, params=request.params))
    return Transcript(text=speech.text)


async def speak(request: TextToSpeechInput) -> SpeechOutput:
    return SpeechOutput(audio=(await ASSISTANT.speaker(TextToSpeak(text=request.string))).audio)
