"""An app that generates videos: frames and samples as base64, with their formats."""

import asyncio
import base64
from typing import Any

import numpy as np

from omnibus.task import Media
from omnibus.task.library import (
    DecodeAudio,
    DecodeVideo,
    Denoise,
    EncodeFrame,
    TextEncode,
    VideoGeneration,
    VideoInput,
)

MODEL = "ltx2-tiny"

DIRECTOR = VideoGeneration(
    text_encoder=TextEncode(model=MODEL, component="text_encoder"),
    denoiser=Denoise(model=MODEL, component="dit"),
    decoder=DecodeVideo(model=MODEL, component="vae"),
    sound=DecodeAudio(model=MODEL, component="audio_vae"),
    frame_encoder=EncodeFrame(model=MODEL, component="vae_encoder"),
)


class Wish(VideoInput):
    """Request for a video; ``first`` is the file of its first image, as base64."""

    first: str = ""


def encode_array(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


async def serve(request: Wish) -> dict[str, Any]:
    image = await Media.of(base64.b64decode(request.first)) if request.first else None
    film = await DIRECTOR(VideoInput(**request.model_dump(exclude={"first", "image"}), image=image))
    streams = {"frames": film.frames, "audio": film.audio, "progress": film.progress}
    there = {name: stream for name, stream in streams.items() if stream is not None}
    results = dict(zip(there, await asyncio.gather(*there.values()), strict=True))
    answer: dict[str, Any] = {"frames": encode_array(results["frames"])}
    if "audio" in results:
        answer["audio"] = {**encode_array(results["audio"].array), "rate": results["audio"].rate}
    return {**answer, "steps": [step.step for step in results.get("progress", [])]}
