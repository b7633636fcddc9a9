"""An app that paints with GLM-Image: PNG files, as base64."""

import asyncio
import base64
import io

import numpy as np
from PIL import Image

from omnibus.task.library import DecodeImage, Denoise, DrawInput, ImageGeneration, Prior, TextEncode

MODEL = "glm-image-tiny"

PAINTER = ImageGeneration(
    text_encoder=TextEncode(model=MODEL, component="text_encoder"),
    denoiser=Denoise(model=MODEL, component="dit"),
    decoder=DecodeImage(model=MODEL, component="vae"),
    prior=Prior(model=MODEL, component="prior"),
)


def encode_png(picture: np.ndarray) -> str:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


async def serve(request: DrawInput) -> list[str]:
    output = await PAINTER(request)
    return [encode_png(picture) for picture in await asyncio.gather(*output.images)]
