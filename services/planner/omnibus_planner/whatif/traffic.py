"""The requests of a question: a trace by its times, a workload by its shares, or the mix of the profile."""

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any, NamedTuple

import msgspec

from omnibus.errors import BadRequest
from omnibus.graph import UNREADABLE
from omnibus.plan import request_type
from omnibus_planner.declared.model import SPEECH, Model
from omnibus_planner.simulate.arrivals import (
    Arrival,
    TypeRate,
    poisson_arrivals,
    repeat_arrivals,
    scale_arrivals,
)
from omnibus_planner.whatif.deployment import Deployment
from omnibus_planner.whatif.question import RateChange, WhatIfQuestion, parse_rate

#: Default of the simulated seconds.
_DEFAULT_SECONDS = 600.0
#: Columns of a trace; those of a profiler's workload, with the time of arrival.
COLUMNS = (
    "num_images", "image_tokens", "text_tokens", "output_tokens", "has_video", "has_audio", "audio_output",
)  # fmt: skip
TIME = "t_s"
#: Tokens of an audio clip and of a video of unknown size in a trace: 4 s, and 2 s of 224 x 224.
_AUDIO_TOKENS, _VIDEO_TOKENS = 100.0, 512.0
#: Pixels of a token's side, and tokens of a second of audio.
_TOKEN_PIXELS, _AUDIO_TOKENS_PER_SECOND = 28.0, 25.0


class Traffic(NamedTuple):
    """Requests of ``seconds``; ``label`` is their source, ``notes`` lists what was left out."""

    label: str
    arrivals: Iterator[Arrival]
    seconds: float
    notes: list[str]


class SizedRequest(NamedTuple):
    """One request of a trace or workload: its type, its sizes, and its share of the workload."""

    kind: str
    sizes: dict[str, float]
    share: float = 1.0


def build_traffic(
    question: WhatIfQuestion, deployment: Deployment, recorded_requests: Sequence[Arrival] | None
) -> Traffic:
    """Build the requests of ``question``; ``recorded_requests`` are those of the record stream.

    Raises ``BadRequest``.
    """
    change = parse_rate(question.rate)
    if sum(map(bool, (question.trace, question.workload, question.since))) > 1:
        raise BadRequest("give one of --trace, --workload and --from")
    if recorded_requests is not None:
        return _timed_traffic(f"recorded in the last {question.since}", list(recorded_requests), change, question, [])
    if question.trace:
        notes: list[str] = []
        arrivals = list(_read_trace(question, deployment, notes))
        return _timed_traffic(f"{question.trace}", arrivals, change, question, notes)
    seconds = question.seconds or _DEFAULT_SECONDS
    if question.workload:
        name, rows = _read_workload(question, deployment)
        rates = [TypeRate(name, each.kind, each.share, each.sizes) for each in rows]
        label = question.workload
    else:
        rates, label = list(_profile_rates(deployment)), "the mix of the profile"
    scaled_rates = _scale_rates(rates, change, deployment, relative=bool(question.workload))
    return Traffic(label, poisson_arrivals(scaled_rates, seconds, question.seed), seconds, [])


def _timed_traffic(
    label: str, arrivals: list[Arrival], change: RateChange, question: WhatIfQuestion, notes: list[str]
) -> Traffic:
    if len(arrivals) < 2:
        raise BadRequest(f"{label}: {len(arrivals)} requests are too few to simulate")
    length = (arrivals[-1].at - arrivals[0].at) * len(arrivals) / (len(arrivals) - 1)
    if not length > 0:
        raise BadRequest(f"{label}: all requests have the same time, so give a trace with times in {TIME}")
    factor = change.factor or change.rate * length / len(arrivals)
    seconds = question.seconds or length / factor
    return Traffic(label, repeat_arrivals(list(scale_arrivals(arrivals, factor)), seconds), seconds, notes)


def _profile_rates(deployment: Deployment) -> Iterator[TypeRate]:
    """Yield rates of the plan's paths, or of the profile's mix.

    The sizes are those of the profile.
    """
    for name, plan in deployment.plans.items():
        for kind, paths in plan.types.items():
            sizes = _profile_sizes(deployment, name, kind)
            if sizes is not None:
                yield TypeRate(name, kind, sum(path.rate for path in paths), sizes)


def _profile_sizes(deployment: Deployment, model: str, kind: str) -> Mapping[str, float] | None:
    """Return the mean sizes of a request type; None if it was not measured."""
    parts = frozenset(kind.split("+"))
    for each in deployment.profiles[model].types.values():
        if frozenset(each.components) == parts:
            return each.quantities
    return None


def _scale_rates(
    rates: Sequence[TypeRate], change: RateChange, deployment: Deployment, *, relative: bool
) -> list[TypeRate]:
    """Scale ``rates``; if ``relative``, they are shares of the planned rate."""
    total = sum(each.rate for each in rates)
    if not total > 0:
        raise BadRequest("there are no requests to simulate: the plan has no path for any type of the workload")
    planned_rate = sum(
        path.rate for plan in deployment.plans.values() for paths in plan.types.values() for path in paths
    )
    usual = planned_rate if relative else total
    factor = (change.rate or change.factor * usual) / total
    return [each._replace(rate=each.rate * factor) for each in rates]


# Files


def _chosen_model(question: WhatIfQuestion, deployment: Deployment) -> Model:
    """Return the model for a file's requests."""
    if question.model and question.model not in deployment.models:
        raise BadRequest(f"--model {question.model}: the plan has {', '.join(deployment.models)}")
    if not question.model and len(deployment.models) > 1:
        raise BadRequest(f"say by --model which model the requests go to: {', '.join(deployment.models)}")
    return deployment.models[question.model or next(iter(deployment.models))]


def _read_text(option: str, path: str) -> str:
    try:
        data = File(path).read_bytes()
        return (gzip.decompress(data) if path.endswith(".gz") else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadRequest(f"--{option} {path} cannot be read: {error}") from error


def _read_trace(question: WhatIfQuestion, deployment: Deployment, notes: list[str]) -> Iterator[Arrival]:
    model, path = _chosen_model(question, deployment), question.trace
    reader = csv.DictReader(io.StringIO(_read_text("trace", path)))
    if TIME not in (reader.fieldnames or ()) or not {*COLUMNS} & {*(reader.fieldnames or ())}:
        raise BadRequest(f"--trace {path} must have column {TIME}, in seconds, and some of {', '.join(COLUMNS)}")
    lacks: dict[str, int] = {}
    before = float("-inf")
    for line, row in enumerate(reader, 2):
        try:
            at = float(row[TIME] or 0.0)
            values = {name: float(row.get(name) or 0.0) for name in COLUMNS}
        except ValueError as error:
            raise BadRequest(f"--trace {path}, line {line}: {error}") from error
        if at < before:
            raise BadRequest(f"--trace {path}, line {line}: times must not go back, and {at:g} follows {before:g}")
        before = at
        sized_request = size_row(model, values, lacks)
        yield Arrival(at, model.name, sized_request.kind, sized_request.sizes)
    notes += [f"{count} requests ask for {ability}, which {model.name} lacks" for ability, count in lacks.items()]


def size_row(model: Model, row: Mapping[str, float], lacks: dict[str, int]) -> SizedRequest:
    """Convert one row of a trace; ``lacks`` counts inputs and outputs that the model does not have."""
    media = {
        "image": row["image_tokens"] if row["num_images"] else 0.0,
        "video": _VIDEO_TOKENS * bool(row["has_video"]),
        "audio": _AUDIO_TOKENS * bool(row["has_audio"]),
    }
    sizes = _request_sizes(model, media, row["text_tokens"], row["output_tokens"], lacks)
    if row["num_images"]:
        sizes["images"] = row["num_images"]
    return SizedRequest(_type_of(model, media, bool(row["audio_output"]), lacks), sizes)


def _request_sizes(
    model: Model, media: Mapping[str, float], text: float, answer: float, lacks: dict[str, int]
) -> dict[str, float]:
    accepted_media = {modality: tokens for modality, tokens in media.items() if tokens and modality in model.encoders}
    for modality in media.keys() - accepted_media.keys():
        if media[modality]:
            lacks[modality] = lacks.get(modality, 0) + 1
    sizes = {f"{modality}_tokens": tokens for modality, tokens in accepted_media.items()}
    sizes["prompt_tokens"] = max(1.0, text) + sum(accepted_media.values())
    if answer:
        sizes["completion_tokens"] = answer
    return sizes


def _type_of(model: Model, media: Mapping[str, float], speaks: bool, lacks: dict[str, int]) -> str:
    speech_parts = [part for part in SPEECH if part in model.components] if speaks else []
    if speaks and not speech_parts:
        lacks["audio output"] = lacks.get("audio output", 0) + 1
    encoders = [model.encoders[modality] for modality, tokens in media.items() if tokens and modality in model.encoders]
    return request_type(model.components, frozenset([*model.required_components(), *encoders, *speech_parts]))


def _read_workload(question: WhatIfQuestion, deployment: Deployment) -> tuple[str, list[SizedRequest]]:
    """Read requests with their shares: from a profiler's JSON, or rows of a CSV."""
    model, path = _chosen_model(question, deployment), question.workload
    text = _read_text("workload", path)
    if path.endswith((".csv", ".csv.gz")):
        rows = csv.DictReader(io.StringIO(text))
        try:
            sized_requests = [
                size_row(model, {name: float(row.get(name) or 0) for name in COLUMNS}, {}) for row in rows
            ]
        except ValueError as error:
            raise BadRequest(f"--workload {path}: {error}") from error
        return model.name, sized_requests
    try:
        entries = msgspec.json.decode(text)["requests"]
        return model.name, [_size_body(model, deployment, entry) for entry in entries]
    except (*UNREADABLE, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadRequest(
            f'--workload {path} must be JSON with a list "requests", as for `omnibus profile`: {error!r}'
        ) from error


def _size_body(model: Model, deployment: Deployment, entry: Mapping[str, Any]) -> SizedRequest:
    """Convert a chat body; an answer without a limit has the length of the profile's type."""
    body, media, words = entry["body"], {"image": 0.0, "audio": 0.0, "video": 0.0}, 0.0
    images = 0
    for message in body["messages"]:
        content = message["content"]
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            words += float(part.get("words") or len(str(part.get("text") or "").split()))
            for modality in media:
                if modality in part or f"{modality}_url" in part:
                    media[modality] += _media_tokens(modality, part.get(modality))
                    images += modality == "image"
    kind = _type_of(model, media, "audio" in (body.get("modalities") or ()), {})
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    usual = dict(_profile_sizes(deployment, model.name, kind) or {})
    known_tokens = usual.get("completion_tokens", 0.0)
    answer = limit if body.get("ignore_eos") or not known_tokens else min(limit or known_tokens, known_tokens)
    sizes = {**usual, **_request_sizes(model, media, words, answer, {})}
    if images:
        sizes["images"] = float(images)
    return SizedRequest(kind, sizes, float(entry.get("share", 1.0)))


def _media_tokens(modality: str, size: Any) -> float:
    """Return the tokens of a medium by its size; for a file, those of a usual one."""
    if modality == "image":
        sides = size if isinstance(size, list) else [448, 448]
        return float(sides[0]) * float(sides[1]) / _TOKEN_PIXELS**2
    if modality == "audio":
        return float(size) * _AUDIO_TOKENS_PER_SECOND if isinstance(size, int | float) else _AUDIO_TOKENS
    return _VIDEO_TOKENS
