"""Send one question to two models (Cornserve's Gemma arena).

The models share a vision encoder, which runs once per image. The system that serves this app needs both models:
``omnibus up --only qwen2.5-vl-tiny --only qwen2.5-vl-tiny-b``.
"""

from collections.abc import AsyncIterator

from omnibus.task import ChatInput, CompositeTask, Encode, Stream, TextChunk, Think, merged
from omnibus.task.library import EncodeInput, ThinkInput

FIRST, SECOND = "qwen2.5-vl-tiny", "qwen2.5-vl-tiny-b"


class Arena(CompositeTask[ChatInput, dict[str, Stream[TextChunk]]]):
    encoder: Encode
    players: dict[str, Think]

    def invoke(self, request: ChatInput) -> dict[str, Stream[TextChunk]]:
        embeddings = [self.encoder.invoke(EncodeInput(media=media)).embedding for media in request.media]
        question = ThinkInput(messages=request.messages, items=embeddings, params=request.params)
        return {name: player.invoke(question).text for name, player in self.players.items()}


ARENA = Arena(
    encoder=Encode(model=FIRST, component="vision"),
    players={name: Think(model=name, component="thinker") for name in (FIRST, SECOND)},
)


async def serve(request: ChatInput) -> AsyncIterator[dict[str, str]]:
    async for model, chunk in merged(await ARENA(request)):
        if chunk.text:
            yield {model: chunk.text}
