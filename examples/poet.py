"""An app that is also an OpenAI model, and edits its stream."""

from omnibus.app import App
from omnibus.task import MLLM, ChatInput, ChatOutput, Encode, TextChunk, Think

BASE = "qwen2.5-vl-tiny"

app = App(model="poet")

_encoder = Encode(model=BASE, component="vision")
POET = MLLM(encoders={"image": _encoder, "video": _encoder}, thinker=Think(model=BASE, component="thinker"))


def loudly(chunk: TextChunk) -> TextChunk:
    return chunk.model_copy(update={"text": chunk.text.upper()})


async def serve(request: ChatInput) -> ChatOutput:
    answer = await POET(request)
    return ChatOutput(text=answer.text.transform(loudly))
