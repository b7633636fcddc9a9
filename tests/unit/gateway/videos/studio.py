"""Gateways over one store and one media directory, with toy video models.

The toys take the same inputs and give the same outputs as models. A video has one colour, from its seed or its first
image, and its audio is one note.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import av
import httpx
import numpy as np
from PIL import Image

from omnibus.executor.runner import Job
from omnibus.settings import StoreSettings
from omnibus.store import JobRecord, Store
from omnibus_gateway.videos.job_payload import KIND
from tests.unit.gateway.house import FILMER, ToyGateway, embed_prompt_words, start_toy_gateway
from tests.unit.sidecar import node as nodes

RATE = 8000
PARTS = ("text_encoder", "vae_encoder", "dit", "vae", "audio_vae")
ASKED: dict[str, Any] = {"model": FILMER, "prompt": "a boat at night", "seconds": "0.5", "size": "64x32", "steps": 4}


class Toys:
    """Toy video models; a closed ``gate`` pauses every denoiser after half of its steps."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun: Counter[int] = Counter()  # by seed
        self.stopped: Counter[int] = Counter()
        self.wishes: list[dict[str, Any]] = []
        self.refuse: Callable[[Job], Awaitable[None]] | None = None

    async def denoise(self, job: Job) -> None:
        await job.value("embeds")
        image = await job.value("image")
        wish = job.inputs
        self.wishes.append(dict(wish))
        self.begun[wish["seed"]] += 1
        try:
            if self.refuse is not None:
                await self.refuse(job)
            for step in range(1, wish["steps"] + 1):
                await job.send("progress", {"step": step, "steps": wish["steps"]})
                if step >= wish["steps"] // 2:
                    await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped[wish["seed"]] += 1
            raise
        job.close("progress")
        shape = (1, wish["frames"], wish["height"], wish["width"])
        colour = wish["seed"] % 200 if image is None else image.array.max()
        await job.put("latents", {}, np.full(shape, colour, np.float32))
        await job.put("sound", {}, np.full((1, int(RATE * wish["frames"] / wish["fps"]), 1), 0.5, np.float32))


async def encode_first_image(job: Job) -> None:
    """Put the colour of a video's first image as latents."""
    colour = Image.open(BytesIO((await job.value("media")).array.tobytes())).getpixel((0, 0))[0]
    await job.put("latents", {}, np.full((1, 1, job.inputs["height"], job.inputs["width"]), colour, np.float32))


async def decode_frames(job: Job) -> None:
    """Decode four frames at a time."""
    latents = (await job.value("latents")).array
    frames = np.repeat(latents[0][..., None], 3, -1).astype(np.uint8)
    for begin in range(0, len(frames), 4):
        await job.send("frames", {}, frames[begin : begin + 4])
    job.close("frames")


async def send_hum(job: Job) -> None:
    count = (await job.value("latents")).array.shape[1]
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(count) / RATE)
    for begin in range(0, count, RATE // 4):
        piece = wave[begin : begin + RATE // 4]
        await job.send("audio", {"rate": RATE}, np.stack([piece, -piece], 1).astype(np.float32))
    job.close("audio")


class Studio:
    """Gateways with the toys' executor. It is started at ``first`` and seen by all."""

    def __init__(
        self, first: ToyGateway, toys: Toys, media: Path, open: Callable[[str], Awaitable[ToyGateway]]
    ) -> None:
        self.first = first
        self.toys = toys
        self.media = media
        self._open = open

    async def gateway(self, name: str) -> ToyGateway:
        """Start another gateway. It makes videos only after ``videos.startup()``."""
        new_gateway = await self._open(name)
        new_gateway.serve(FILMER)
        await nodes.wait_until(lambda: new_gateway.members.get("filmer") is not None)
        return new_gateway

    async def start_executor(self) -> None:
        """Start the executor."""
        works = {
            "dit": self.toys.denoise,
            "vae": decode_frames,
            "audio_vae": send_hum,
            "text_encoder": embed_prompt_words,
            "vae_encoder": encode_first_image,
        }
        await self.first.executor(FILMER, "M", *PARTS, id="filmer", **works)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.media / "videos").glob("*"))


@asynccontextmanager
async def open_studio(directory: Path, store_url: str, hired: bool = True, **changes: Any) -> AsyncIterator[Studio]:
    """Yield a studio; ``changes`` are settings of all gateways, and the first of them makes videos."""
    settings = {"video_lease": 2.5, **changes}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            start_toy_gateway(directory, await stack.enter_async_context(connect_store(store_url)), **settings)
        )

        async def open_gateway(name: str) -> ToyGateway:
            other_gateway = ToyGateway(
                first.place, first.settings, await stack.enter_async_context(connect_store(store_url)), name
            )
            await other_gateway.open()
            stack.push_async_callback(other_gateway.close)
            return other_gateway

        new_studio = Studio(first, Toys(), Path(first.settings.media_dir), open_gateway)
        first.serve(FILMER)
        if hired:
            await new_studio.start_executor()
        first.videos.startup()
        yield new_studio


@asynccontextmanager
async def connect_store(url: str) -> AsyncIterator[Store]:
    store = Store(StoreSettings(url=url, prefix="videos", timeout=5.0))
    try:
        yield store
    finally:
        await store.close()


async def request_video(at: ToyGateway, **more: Any) -> dict[str, Any]:
    """Request a video and return its job."""
    response = await at.http.post("/v1/videos", json={**ASKED, **more})
    assert response.status_code == 200, response.text
    job: dict[str, Any] = response.json()
    return job


async def read_video(at: ToyGateway, id: str) -> dict[str, Any]:
    response = await at.http.get(f"/v1/videos/{id}")
    assert response.status_code == 200, response.text
    video: dict[str, Any] = response.json()
    return video


async def wait_for_video(at: ToyGateway, id: str, **wanted: Any) -> dict[str, Any]:
    """Return the video from ``at`` once it has the ``wanted`` values."""
    video: dict[str, Any] = {}

    async def has_values() -> bool:
        video.update(await read_video(at, id))
        return all(video[name] == value for name, value in wanted.items())

    await nodes.wait_until(has_values)
    return video


async def fetch_content(at: ToyGateway, id: str, **query: str) -> httpx.Response:
    return await at.http.get(f"/v1/videos/{id}/content", params=query)


async def taken_by_nobody(url: str, id: str, seconds: float = 0.3, trace: bytes = b"") -> None:
    """Take the next job as a worker that then falls silent."""

    async def can_take() -> bool:
        return isinstance(await store.take_job(KIND, "nobody", seconds), JobRecord)

    async with connect_store(url) as store:
        await nodes.wait_until(can_take)
        await store.hold_job(KIND, id, "nobody", seconds, 30, trace)


class DecodedVideo(NamedTuple):
    """A decoded video: ``frames`` uint8 [n, height, width, 3], ``sound`` float32 [samples, channels], or None."""

    frames: np.ndarray
    fps: float
    sound: np.ndarray | None
    rate: int


def decode_video(file: bytes) -> DecodedVideo:
    with av.open(BytesIO(file)) as film:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)])
        fps = float(film.streams.video[0].average_rate)
    with av.open(BytesIO(file)) as film:
        if not film.streams.audio:
            return DecodedVideo(frames, fps, None, 0)
        sound = np.concatenate([frame.to_ndarray() for frame in film.decode(audio=0)], -1)
        return DecodedVideo(frames, fps, sound.T, film.streams.audio[0].rate)
