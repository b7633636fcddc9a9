"""Workload of request sizes: converts rows of a CSV to chat bodies.

Columns are ``num_images``, ``image_tokens`` (of all together), ``text_tokens``, ``output_tokens``, ``has_video``,
``has_audio``, ``audio_output``. A missing column is 0, and unknown columns are ignored. A token of text is a word, one
of an image 28 x 28 pixels. All audio clips have one length, and so have all videos. Media that the model does not take
are left out, with a note.
"""

import csv
import io
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.profiling.measured_model import Subject

#: Side of an image token in pixels, seconds of audio and video, and pixels of such a video's side.
TOKEN_SIDE_PIXELS, AUDIO_SECONDS, VIDEO_SECONDS, VIDEO_SIDE_PIXELS = 28, 4.0, 2.0, 224
TOKENS = ("image_tokens", "text_tokens", "output_tokens")
SIZES = ("num_images", *TOKENS, "has_video", "has_audio", "audio_output")


class RowSampling(msgspec.Struct, frozen=True):
    """Number of ``rows`` to sample from a CSV with ``seed``; ``scale`` multiplies numbers of tokens."""

    rows: int = 64
    seed: int = 0
    scale: float = 1.0


DEFAULT_SAMPLING = RowSampling()


def sample_bodies(
    path: Path, text: str, subject: Subject, how: RowSampling, notes: list[str]
) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield the place, share and body of each sampled row.

    Adds what is left out to ``notes``. Raises ``BadRequest``.
    """
    reader = csv.DictReader(io.StringIO(text))
    if not {*SIZES} & {*(reader.fieldnames or ())}:
        raise BadRequest(f"the workload {path} has none of the columns {', '.join(SIZES)}")
    rows = list(enumerate(reader, 2))  # as editors count lines
    if len(rows) > how.rows:
        rows = sorted(random.Random(how.seed).sample(rows, how.rows), key=lambda row: row[0])
    missing: dict[str, int] = {}
    for line, row in rows:
        try:
            sizes = {name: _scaled_count(row.get(name), how.scale if name in TOKENS else 1.0) for name in SIZES}
        except (ValueError, OverflowError) as error:
            raise BadRequest(f"{path}, line {line}: {error}") from error
        yield f"line {line}", 1.0, _chat_body(sizes, subject, missing)
    notes += [
        f"{count} of {len(rows)} requests ask for {feature}, which {subject.name} lacks"
        for feature, count in missing.items()
    ]


def _scaled_count(value: Any, scale: float) -> int:
    return max(0, math.ceil(float(value or 0) * scale))


def _chat_body(sizes: dict[str, int], subject: Subject, missing: dict[str, int]) -> dict[str, Any]:
    images = sizes["num_images"]
    side = max(1, round((sizes["image_tokens"] / images) ** 0.5)) * TOKEN_SIDE_PIXELS if images else 0
    media: list[tuple[str, Any]] = [("image", [side, side])] * images
    media += [("video", [VIDEO_SIDE_PIXELS, VIDEO_SIDE_PIXELS, VIDEO_SECONDS])] * bool(sizes["has_video"])
    media += [("audio", AUDIO_SECONDS)] * bool(sizes["has_audio"])
    for modality in dict.fromkeys(modality for modality, _ in media if modality not in subject.encoders):
        missing[modality] = missing.get(modality, 0) + 1
    content = [{modality: size} for modality, size in media if modality in subject.encoders]
    content.append({"words": max(1, sizes["text_tokens"])})
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}]}
    body |= {"max_tokens": max(1, sizes["output_tokens"]), "ignore_eos": True}
    if sizes["audio_output"] and "talker" in subject.components:
        body |= {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    elif sizes["audio_output"]:
        missing["audio output"] = missing.get("audio output", 0) + 1
    return body
