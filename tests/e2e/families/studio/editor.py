"""An app that edits the image of a chat by JSON instructions.

The results are PNG files, as base64.
"""

import asyncio
import base64
import io
import json

import numpy as np
from PIL import Image

from omnibus.task import ChatInput
from omnibus.task.library import DecodeImage, Denoise, EditInput, Encode, ImageEdit, TextEncode

MODEL = "qwen-image-edit-tiny"

EDITOR = ImageEdit(
    vision=Encode(model=MODEL, component="vision"),
    text_encoder=TextEncode(model=MODEL, component="text_encoder"),
    vae_encoder=Encode(model=MODEL, component="vae_encoder"),
    denoiser=Denoise(model=MODEL, component="dit"),
    decoder=DecodeImage(model=MODEL, component="vae"),
)


def encode_png(picture: np.ndarray) -> str:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


async def serve(request: ChatInput) -> list[str]:
    [wish] = [json.loads(part["text"]) for part in request.messages[0]["content"] if part["type"] == "text"]
    output = await EDITOR(EditInput(image=request.media[0], **wish))
    return [encode_png(picture) for picture in await asyncio.gather(*output.images)]
