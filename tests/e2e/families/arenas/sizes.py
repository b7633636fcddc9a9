"""Two sizes of Gemma 3 answer the same question.

They share an encoder, which encodes each image once.
"""

from typing import Any

from omnibus.task import ChatInput, CompositeTask, Encode, Think
from omnibus.task.library import EncodeInput, ThinkInput

SMALL, LARGE = "gemma3-tiny", "gemma3-tiny-b"


class Sizes(CompositeTask):
    encoder: Encode
    small: Think
    large: Think

    def invoke(self, request: ChatInput) -> dict[str, Any]:
        embeddings = [self.encoder.invoke(EncodeInput(media=media)).embedding for media in request.media]
        question = ThinkInput(messages=request.messages, items=embeddings, params=request.params)
        return {SMALL: self.small.invoke(question).text, LARGE: self.large.invoke(question).text}


SIZES = Sizes(
    encoder=Encode(model=SMALL, component="vision"),
    small=Think(model=SMALL, component="thinker"),
    large=Think(model=LARGE, component="thinker"),
)


async def serve(request: ChatInput) -> dict[str, str]:
    answers = await SIZES(request)
    return {name: "".join([chunk.text async for chunk in answer]) for name, answer in answers.items()}
