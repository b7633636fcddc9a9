"""Workload of a measurement: converts a file to requests that are ready to send. It has two forms.

JSON: OpenAI chat bodies with their shares (equal ones may be left out). Paths are relative to the file.

    {"requests": [{"share": 0.6, "body": {"messages": [{"role": "user", "content": [
                      {"image": [448, 448]}, {"type": "text", "text": "What is this?"}]}], "max_tokens": 64}},
                  {"share": 0.4, "body": {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}}]}

| a part of `content` | |
|---|---|
| `{"image": [448, 448]}`, `{"audio": 3.5}`, `{"video": [224, 224, 2]}` | made here: pixels, seconds |
| `{"image": "cat.jpg"}`, also `audio`, `video` | a file, or a URL |
| `{"words": 500}` | a text of so many words, each about a token |
| `{"type": "image_url", ...}` and all else | as OpenAI has it; the URL may be a file's path |

CSV (`.csv` or `.csv.gz`) has the sizes of one request a row; see ``omnibus.profiling.csv_workload``.

Generated images, audio and videos of a given size: the same seed gives the same bytes.
"""

import base64
import gzip
import hashlib
import io
import json
import mimetypes
import random
import struct
import wave
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omnibus.errors import BadRequest
from omnibus.profiling import csv_workload, size_variants
from omnibus.profiling.csv_workload import DEFAULT_SAMPLING, TOKEN_SIDE_PIXELS, RowSampling
from omnibus.profiling.measured_model import Subject

#: Samples per second of audio, frames per second of a video.
SAMPLE_RATE_HERTZ, FRAMES_PER_SECOND = 16_000, 4
#: Pixels of one side of a square whose colour is drawn; the rest follows, so that files stay small.
_BLOCK_SIDE_PIXELS = 14


def make_image(width: int, height: int, seed: int) -> bytes:
    """Return a PNG of ``width`` x ``height`` pixels."""
    rows = _random_pixels(np.random.default_rng(seed), width, height)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows.reshape(height, width * 3)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(raw.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, data) for kind, data in parts)


def make_audio(seconds: float, seed: int) -> bytes:
    """Return a WAV file, mono, 16 bit: a tone in noise."""
    count = max(1, round(seconds * SAMPLE_RATE_HERTZ))
    noise = np.random.default_rng(seed).standard_normal(count)
    tone = np.sin(np.arange(count) * (250 + 10 * (seed % 50)) * 2 * np.pi / SAMPLE_RATE_HERTZ)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HERTZ)
        file.writeframes(((0.3 * tone + 0.01 * noise) * 32000).astype("<i2").tobytes())
    return out.getvalue()


def make_video(width: int, height: int, seconds: float, seed: int) -> bytes:
    """Return an MP4. Raises ``BadRequest`` if PyAV is not installed."""
    try:
        import av
    except ImportError as error:
        raise BadRequest(f"videos of a size need PyAV (`pip install av`), or name files instead: {error}") from error
    random = np.random.default_rng(seed)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("mpeg4", rate=FRAMES_PER_SECOND)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for _ in range(max(1, round(seconds * FRAMES_PER_SECOND))):
            frame = av.VideoFrame.from_ndarray(_random_pixels(random, width, height), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


def _random_pixels(random: np.random.Generator, width: int, height: int) -> np.ndarray:
    coarse = random.integers(
        0, 255, (-(-height // _BLOCK_SIDE_PIXELS), -(-width // _BLOCK_SIDE_PIXELS), 3), dtype=np.uint8
    )
    return np.ascontiguousarray(coarse.repeat(_BLOCK_SIDE_PIXELS, 0).repeat(_BLOCK_SIDE_PIXELS, 1)[:height, :width])


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


MODALITIES = ("image", "audio", "video")
#: Tokens assumed for a second of audio or a frame of video when requests are sorted by size.
_AUDIO_TOKENS_PER_SECOND = 25
_WORDS = (
    "the", "time", "of", "day", "when", "light", "falls", "over", "water", "and", "stone", "is", "what", "people",
    "like", "to", "see", "in", "a", "small", "town", "by", "where", "each", "house", "has", "its", "own",
)  # fmt: skip


class WorkloadRequest(msgspec.Struct, frozen=True):
    """One request: its share of all, its type, and its body, also in a form with a one-token answer.

    ``size``, roughly in tokens, orders requests. ``variants`` are requests of other sizes by name, for the most
    frequent request of a type. Their share is 1.
    """

    share: float
    kind: str
    used: tuple[str, ...]
    media: tuple[str, ...]
    body: bytes
    short: bytes
    size: float
    where: str
    variants: "dict[str, WorkloadRequest]" = {}
    #: URL path that takes the body, if it is not a chat.
    target: str = ""


class Workload(msgspec.Struct, frozen=True):
    """Requests whose shares sum to 1. ``label`` has the file's name and digest, ``notes`` what was left out."""

    label: str
    requests: tuple[WorkloadRequest, ...]
    notes: tuple[str, ...] = ()

    @property
    def type_shares(self) -> dict[str, float]:
        """Share of each request type."""
        shares: dict[str, float] = {}
        for request in self.requests:
            shares[request.kind] = shares.get(request.kind, 0.0) + request.share
        return shares

    def requests_of(self, kind: str) -> tuple[WorkloadRequest, ...]:
        return tuple(request for request in self.requests if request.kind == kind)


def read_workload(path: Path, subject: Subject, how: RowSampling = DEFAULT_SAMPLING) -> Workload:
    """Return the workload of ``path`` for ``subject``. Raises ``BadRequest`` with the reason."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadRequest(f"the workload {path} cannot be read: {why}") from error
    notes: list[str] = []
    if path.name.endswith((".csv", ".csv.gz")):
        entries = list(csv_workload.sample_bodies(path, text, subject, how, notes))
    else:
        entries = [(where, share, entry["body"]) for where, share, entry in json_entries(path, text)]
    parsed_requests = [_build_request(path, subject, how.seed, *entry) for entry in entries]
    parsed_requests = [request for request in parsed_requests if request.share > 0]
    if not parsed_requests:
        raise BadRequest(f"the workload {path} has no requests")
    parsed_requests = list(
        _add_variants(path, subject, how.seed, parsed_requests, {where: body for where, _, body in entries})
    )
    total = sum(request.share for request in parsed_requests)
    digest = hashlib.sha256(b"".join(request.body for request in parsed_requests) + data).hexdigest()[:12]
    return Workload(
        label=f"{path.name} {digest}",
        requests=tuple(msgspec.structs.replace(request, share=request.share / total) for request in parsed_requests),
        notes=tuple(notes),
    )


def json_entries(path: Path, text: str) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield the place, the share and the entry of each request in JSON. Raises ``BadRequest`` with its place."""
    try:
        requests = json.loads(text)["requests"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(
            f'the workload {path} must be JSON, {{"requests": [...]}}, or a .csv file ({error})'
        ) from error
    for index, entry in enumerate(requests if isinstance(requests, list) else []):
        where = f"requests[{index}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("body"), dict):
            raise BadRequest(f"{path}: {where} must have a `body`, an object")
        share = entry.get("share", 1.0)
        if not isinstance(share, int | float) or not 0 <= share < float("inf"):
            raise BadRequest(f"{path}: the share of {where} must be a number, 0 or more, not {share!r}")
        yield where, float(share), entry


def _add_variants(
    path: Path, subject: Subject, seed: int, requests: Sequence[WorkloadRequest], bodies: dict[str, dict[str, Any]]
) -> Iterator[WorkloadRequest]:
    """Yield ``requests``; the most frequent one of each type has its variants."""
    most = {each.kind: each for each in sorted(requests, key=lambda request: request.share)}
    for request in requests:
        if request is not most[request.kind]:
            yield request
            continue
        variants = {
            name: _build_request(path, subject, seed, f"{request.where}, {name},", 1.0, body)
            for name, body in size_variants.vary_body(bodies[request.where], request.media)
        }
        yield msgspec.structs.replace(request, variants=variants)


def _build_request(
    path: Path, subject: Subject, seed: int, where: str, share: float, body: dict[str, Any]
) -> WorkloadRequest:
    reader = ChatMessageReader(path, seed, where)
    try:
        messages = [reader.convert_message(message) for message in body["messages"]]
        speaks = "audio" in (body.get("modalities") or ())
        components = subject.used_components(reader.modalities, speaks)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRequest(f"{path}: {where} is not a chat request ({error!r})") from error
    except BadRequest as error:
        raise BadRequest(f"{path}: {where}: {error.message}") from error
    plain = {key: value for key, value in body.items() if key not in ("n", "model")}
    whole = {**plain, "model": subject.name, "messages": messages, "stream": True}
    whole["stream_options"] = {"include_usage": True}
    if speaks and isinstance(whole.get("audio"), dict):
        whole["audio"] = {**whole["audio"], "format": "wav"}  # streams, and contains its rate
    return WorkloadRequest(
        share=share,
        kind=subject.type_name(components),
        used=subject.in_flow_order(components),
        media=tuple(sorted(reader.modalities)),
        body=json.dumps(whole).encode(),
        short=json.dumps(_one_token_body(whole, speaks)).encode(),
        size=reader.size + _token_limit(body),
        where=where,
    )


def _one_token_body(body: dict[str, Any], speaks: bool) -> dict[str, Any]:
    """Return ``body`` with an answer of one token."""
    short = {key: value for key, value in body.items() if key != "max_completion_tokens"} | {"max_tokens": 1}
    return short | ({"audio": {**body["audio"], "max_tokens": 1}} if speaks and body.get("audio") else {})


def _token_limit(body: dict[str, Any]) -> float:
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    return float(limit) if isinstance(limit, int | float) else 0.0


class ChatMessageReader:
    """Reads one request's messages: their media, and their total size."""

    def __init__(self, path: Path, seed: int, where: str) -> None:
        self.modalities: set[str] = set()
        self.size = 0.0
        self._near = path.parent
        self._seeds = random.Random(f"{seed}/{where}")

    def convert_message(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message["content"]
        if not isinstance(content, list):
            self._text_part(str(content))
            return message
        return {**message, "content": [self._convert_part(part) for part in content]}

    def _convert_part(self, part: Any) -> dict[str, Any]:
        if isinstance(part, str):
            return self._text_part(part)
        kind = part.get("type", "")
        if "words" in part:
            return self._text_part(" ".join(self._seeds.choices(_WORDS, k=int(part["words"]))))
        if kind == "text":
            return self._text_part(str(part["text"]))
        if kind == "input_audio":
            self._add_media("audio", _AUDIO_TOKENS_PER_SECOND)
            return dict(part)
        modality = next((each for each in MODALITIES if each in part or kind == f"{each}_url"), "")
        if not modality:
            raise ValueError(f"a part of content must be text, words, {', '.join(MODALITIES)}, not {str(part)[:80]}")
        value = part[modality] if modality in part else part[kind]["url"]
        url = self._media_url(modality, value) if isinstance(value, str) else self._make_media(modality, value)
        return {"type": f"{modality}_url", f"{modality}_url": {**part.get(kind, {}), "url": url}}

    def _text_part(self, text: str) -> dict[str, Any]:
        self.size += len(text.split())
        return {"type": "text", "text": text}

    def _add_media(self, modality: str, tokens: float) -> None:
        self.modalities.add(modality)
        self.size += tokens

    def _media_url(self, modality: str, url: str) -> str:
        if url.startswith(("data:", "http:", "https:")):
            self._add_media(modality, len(url) / 1000)
            return url
        path = self._near / url
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {error.strerror}") from error
        self._add_media(modality, len(data) / 1000)
        return _data_url(mimetypes.guess_type(path.name)[0] or f"{modality}/*", data)

    def _make_media(self, modality: str, size: Any) -> str:
        """Return a medium of that size as data URL. Raises ``ValueError`` for an invalid size."""
        seed = self._seeds.randrange(1 << 31)
        makers: dict[str, tuple[int, Callable[..., bytes], str]] = {
            "image": (2, make_image, "image/png"),
            "audio": (1, make_audio, "audio/wav"),
            "video": (3, make_video, "video/mp4"),
        }
        count, make, mime = makers[modality]
        numbers: Sequence[Any] = size if isinstance(size, list) else [size]
        if len(numbers) != count or not all(isinstance(each, int | float) and each > 0 for each in numbers):
            raise ValueError(f"the size of {modality} must be {count} numbers above 0, not {size!r}")
        pixels = [int(each) for each in numbers[:2]] if count > 1 else []
        area = pixels[0] * pixels[1] / TOKEN_SIDE_PIXELS**2 if pixels else 1.0
        seconds = list(numbers[len(pixels) :])
        self._add_media(
            modality,
            area * (seconds[0] * FRAMES_PER_SECOND if seconds else 1)
            if pixels
            else seconds[0] * _AUDIO_TOKENS_PER_SECOND,
        )
        return _data_url(mime, make(*pixels, *seconds, seed))


def _data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"
