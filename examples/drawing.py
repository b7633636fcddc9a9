"""Generate images of a text; the first that a judge recognizes wins.

The graph passes an image from one task to another one's encoder, without a detour through the client. ``Media.of`` adds
images that the app has itself, here the ``rival`` of a request.
"""

import asyncio
import base64

from pydantic import BaseModel, Field, SkipValidation

from omnibus.encoding.image import encode_image
from omnibus.task import MLLM, ChatInput, CompositeTask, Encode, Media, Tensors, Think
from omnibus.task.library import DecodeImage, Denoise, DrawInput, ImageGeneration, PlacedMedia, TextEncode

PAINTER, JUDGE = "qwen-image-world", "qwen2.5-omni-world"


class Wish(BaseModel):
    text: str
    drawings: int = Field(default=3, ge=1, le=8)
    #: A PNG file in base64 that takes part as if it had been drawn.
    rival: str = ""


class Drawing(BaseModel):
    #: A PNG file in base64.
    image: str
    #: What the judge sees in each drawing; the one that was chosen, from 0.
    seen: list[str]
    chosen: int


class Judged(BaseModel):
    drawn: SkipValidation[Tensors]
    seen: list[str]


class JudgedDrawings(CompositeTask[Wish, Judged]):
    painter: ImageGeneration = ImageGeneration(
        text_encoder=TextEncode(model=PAINTER, component="text_encoder"),
        denoiser=Denoise(model=PAINTER, component="dit"),
        decoder=DecodeImage(model=PAINTER, component="vae"),
    )
    judge: MLLM = MLLM(
        encoders={"image": Encode(model=JUDGE, component="vision")}, thinker=Think(model=JUDGE, component="thinker")
    )

    async def invoke(self, wish: Wish) -> Judged:
        drawing = self.painter.invoke(
            DrawInput(prompt=wish.text, n=wish.drawings, width=64, height=64, steps=8, guidance=2.0, seed=1)
        )
        candidates: list[PlacedMedia] = [*drawing.images]
        if wish.rival:
            candidates.append(await Media.of(base64.b64decode(wish.rival)))
        answers = [
            self.judge.invoke(ChatInput.of("What do you see?", media=[image], max_tokens=20, temperature=0)).text
            for image in candidates
        ]
        return Judged(drawn=drawing.images, seen=await asyncio.gather(*answers))


JUDGED_DRAWINGS = JudgedDrawings()


async def serve(wish: Wish) -> Drawing:
    result = await JUDGED_DRAWINGS(wish)
    winner = next((number for number, words in enumerate(result.seen) if words == wish.text), 0)
    if winner == wish.drawings:
        return Drawing(image=wish.rival, seen=result.seen, chosen=winner)
    image = await asyncio.to_thread(encode_image, await result.drawn[winner], "png")
    return Drawing(image=base64.b64encode(image).decode(), seen=result.seen, chosen=winner)
