"""What is measured of each model, and compared."""

import base64
import io
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
from PIL import Image

from tests.gpu import loads, peers
from tests.gpu.peers import Device, TextPeer
from tests.unit.models import files

_PROMPT = "the small white cat sleeps on a warm red mat and the quick brown fox jumps over the lazy dog"


class Row(NamedTuple):
    """One figure; ``ratio`` is above 1 where Omnibus is faster, or the share that is equal."""

    model: str
    what: str
    ours: float
    peer: float | None = None
    ratio: float | None = None


class Bench(NamedTuple):
    """A served model; ``tiny``: answers must be equal, and few of everything are enough."""

    http: httpx.AsyncClient
    model: str
    checkpoint: Path
    device: Device
    tiny: bool

    def rate(self, what: str, ours: float, peer: float) -> Row:
        """Compare rates, where more is better."""
        return Row(self.model, what, ours, peer, ours / peer)

    def seconds(self, what: str, ours: float, peer: float) -> Row:
        """Compare durations, where less is better."""
        return Row(self.model, what, ours, peer, peer / ours)

    def equal(self, what: str, share: float, required: float = 1.0) -> Row:
        """Report the share that is equal; of a tiny model at least ``required`` must be."""
        if self.tiny and share < required:
            raise ValueError(f"{what}: {share:.4f} are equal to the library's, not {required}")
        return Row(self.model, what, share)


async def measure_text(bench: Bench) -> AsyncIterator[Row]:
    """Tokens per second of one text and of many; the greedy answer equals the library's."""
    tokens, many = (8, 2) if bench.tiny else (64, 16)
    prompts = [f"{number} {_PROMPT}" for number in range(many)]
    body = {"model": bench.model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}

    async def complete(prompt: str) -> loads.StreamedAnswer:
        return await loads.stream_answer(bench.http, "/v1/completions", {**body, "prompt": prompt})

    await loads.time_together([partial(complete, prompt) for prompt in prompts])  # graphs of each size
    alone = await complete(f"again {_PROMPT}")
    together, answers = await loads.time_together([partial(complete, f"more {prompt}") for prompt in prompts])
    peer = TextPeer(bench.checkpoint, "AutoModelForCausalLM", bench.device)
    peer_alone, _ = peer.generate([f"again {_PROMPT}"], tokens)
    peer_together, ids = peer.generate([f"more {prompt}" for prompt in prompts], tokens)
    yield bench.rate("tokens a second, one request", tokens / alone.whole, tokens / peer_alone)
    yield bench.rate(f"tokens a second, {many} at once", many * tokens / together, many * tokens / peer_together)
    yield Row(bench.model, "first token, seconds", alone.first)
    yield bench.equal(
        "share of the texts that is equal, from the beginning", _share_equal(peer, ids, [each.text for each in answers])
    )


def _share_equal(peer: TextPeer, ids: Sequence[Sequence[int]], texts: Sequence[str]) -> float:
    """Return the mean share of each answer that is the library's, from its beginning."""
    pairs = list(zip(texts, map(peer.decode, ids), strict=True))
    equal = [sum(1 for _ in takewhile(lambda each: each[0] == each[1], zip(*pair, strict=False))) for pair in pairs]
    return sum(count / max(1, *map(len, pair)) for count, pair in zip(equal, pairs, strict=True)) / len(pairs)


async def measure_images(bench: Bench) -> AsyncIterator[Row]:
    """Chats about images, with the encoder apart and together."""
    tokens, many, side = (8, 2, 56) if bench.tiny else (16, 8, 448)
    body = {"model": bench.model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    peer = TextPeer(bench.checkpoint, "AutoModelForImageTextToText", bench.device)
    images = [_make_image(seed, side) for seed in range(2 * many + 2)]
    prompt = peer.ask("what is in this image?")

    async def chat(image: Image.Image, path: str) -> loads.StreamedAnswer:
        messages = loads.ask_about(image, "what is in this image?")
        return await loads.stream_answer(bench.http, "/v1/chat/completions", {**body, "messages": messages}, path)

    peer_alone, _ = peer.generate([prompt], tokens, images[:1])
    peer_together, ids = peer.generate([prompt] * many, tokens, images[:many])
    texts = {}
    for place, path in enumerate(("EL", "E>L")):
        own = images[place * many : (place + 1) * many] if place else images[:many]
        await loads.time_together([partial(chat, image, path) for image in images[-2:]])
        alone = await chat(_make_image(100 + place, side), path)
        together, answers = await loads.time_together([partial(chat, image, path) for image in own])
        texts[path] = [each.text for each in answers]
        yield Row(bench.model, f"first token of an image, {path}, seconds", alone.first)
        yield bench.seconds(f"an image and {tokens} tokens, {path}, seconds", alone.whole, peer_alone)
        yield bench.rate(f"images a second, {many} at once, {path}", many / together, many / peer_together)
    yield bench.equal("share of the texts that is equal, from the beginning", _share_equal(peer, ids, texts["EL"]))


def _make_image(seed: int, side: int) -> Image.Image:
    return Image.open(io.BytesIO(files.make_picture(seed, side, side))).convert("RGB")


async def measure_speech(bench: Bench) -> AsyncIterator[Row]:
    """Seconds of computing for a second of speech, alone and four at once."""
    many = 2 if bench.tiny else 4
    body = {
        "model": bench.model, "max_tokens": 32, "temperature": 0,
        "modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "pcm16"},
    }  # fmt: skip

    async def speak(text: str, path: str) -> loads.StreamedAnswer:
        messages = [{"role": "user", "content": text}]
        return await loads.stream_answer(bench.http, "/v1/chat/completions", {**body, "messages": messages}, path)

    peer = peers.speak(bench.checkpoint, bench.device, f"again {_PROMPT}")
    for path in ("M", "Th>Ta>V"):
        await speak(_PROMPT, path)
        alone = await speak(f"again {_PROMPT}", path)
        calls = [partial(speak, f"{number} {_PROMPT}", path) for number in range(many)]
        together, answers = await loads.time_together(calls)
        speech = sum(each.speech for each in answers)
        yield bench.seconds(f"seconds for a second of speech, {path}", alone.whole / alone.speech, peer)
        yield bench.seconds(f"seconds for a second of speech, {many} at once, {path}", together / speech, peer)
        yield Row(bench.model, f"first audio, {path}, seconds", alone.first)


async def measure_painting(bench: Bench) -> AsyncIterator[Row]:
    """Images from text, one and four at once; pixels against the library's."""
    size, steps, many = (32, 3, 2) if bench.tiny else (1024, 12, 4)
    body = {"model": bench.model, "prompt": _PROMPT, "size": f"{size}x{size}", "steps": steps}

    async def paint(seed: int, path: str = "") -> np.ndarray:
        headers = {"x-omnibus-path": path} if path else {}
        answer = await loads.post(bench.http, "/v1/images/generations", json={**body, "seed": seed}, headers=headers)
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))), np.int16)

    for path in ("M", "T>D>V"):
        await paint(100, path)
    alone, [first] = await loads.time_together([partial(paint, 0, "M")])
    apart, [second] = await loads.time_together([partial(paint, 0, "T>D>V")])
    together, _ = await loads.time_together([partial(paint, seed, "T>D>V") for seed in range(many)])
    peer_alone, [image] = peers.paint(bench.checkpoint, bench.device, _PROMPT, size, steps, 1)
    peer_together, _ = peers.paint(bench.checkpoint, bench.device, _PROMPT, size, steps, many)
    yield bench.seconds("seconds for an image, M", alone, peer_alone)
    yield bench.seconds("seconds for an image, T>D>V", apart, peer_alone)
    yield bench.rate(f"images a second, {many} at once", many / together, many / peer_together)
    expected = np.asarray(image, np.int16)
    yield bench.equal("pixels within 2 of 255, M", float((abs(first - expected) <= 2).mean()))
    yield bench.equal("pixels within 2 of 255, T>D>V", float((abs(second - expected) <= 2).mean()))


async def measure_recognizer(bench: Bench) -> AsyncIterator[Row]:
    """Transcripts of short clips, one and many at once."""
    many = 2 if bench.tiny else 16

    async def transcribe(seed: int) -> str:
        form = {"model": bench.model, "language": "en", "temperature": "0"}
        upload = {"file": ("clip.wav", files.make_tone(1.8, seed), "audio/wav")}
        return str((await loads.post(bench.http, "/v1/audio/transcriptions", data=form, files=upload))["text"])

    await loads.time_together([partial(transcribe, seed) for seed in range(100, 100 + many)])
    alone, _ = await loads.time_together([partial(transcribe, 0)])
    together, _ = await loads.time_together([partial(transcribe, seed) for seed in range(1, many + 1)])
    clips = [_decode(files.make_tone(1.8, seed)) for seed in range(many)]
    yield bench.seconds("seconds for a clip", alone, peers.transcribe(bench.checkpoint, bench.device, clips[:1]))
    peer_together = peers.transcribe(bench.checkpoint, bench.device, clips)
    yield bench.rate(f"clips a second, {many} at once", many / together, many / peer_together)


def _decode(data: bytes) -> np.ndarray:
    from omnibus_models.media import decode_audio

    return decode_audio(memoryview(data))


async def measure_sentences(bench: Bench) -> AsyncIterator[Row]:
    """Embeddings of a batch of texts."""
    many = 4 if bench.tiny else 64
    texts = [f"{number} {_PROMPT}" for number in range(many)]

    async def embed() -> np.ndarray:
        answer = await loads.post(bench.http, "/v1/embeddings", json={"model": bench.model, "input": texts})
        return np.array([entry["embedding"] for entry in answer["data"]])

    await embed()
    seconds, [vectors] = await loads.time_together([embed])
    peer_seconds, expected = peers.embed(bench.checkpoint, bench.device, texts)
    yield bench.rate("texts a second in one request", many / seconds, many / peer_seconds)
    yield bench.equal("smallest cosine", float((vectors * expected.numpy()).sum(-1).min()), 1 - 1e-5)


#: How each model of ``checkpoints.RECIPES`` is measured.
PATHS: dict[str, Callable[[Bench], AsyncIterator[Row]]] = {
    "text": measure_text,
    "images": measure_images,
    "linear": measure_images,
    "speech": measure_speech,
    "painter": measure_painting,
    "recognizer": measure_recognizer,
    "sentences": measure_sentences,
}
