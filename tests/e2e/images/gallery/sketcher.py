"""An app that streams its progress: step numbers, preview sizes, then the image."""

from collections.abc import AsyncIterator
from typing import Any

from omnibus.task.library import DecodeImage, Denoise, DrawInput, ImageGeneration, TextEncode

MODEL = "qwen-image-tiny"

PAINTER = ImageGeneration(
    text_encoder=TextEncode(model=MODEL, component="text_encoder"),
    denoiser=Denoise(model=MODEL, component="dit"),
    decoder=DecodeImage(model=MODEL, component="vae"),
)


async def serve(request: DrawInput) -> AsyncIterator[dict[str, Any]]:
    output = await PAINTER(request.model_copy(update={"n": 1, "progress": True}))
    async for step in output.progress[0]:
        yield {"step": step.step, "of": step.steps}
    for previews in output.previews:
        async for preview in previews:
            yield {"preview": preview.step, "size": list(preview.array.shape)}
    picture = await output.images[0]
    yield {"picture": list(picture.shape), "mean": float(picture.mean())}
