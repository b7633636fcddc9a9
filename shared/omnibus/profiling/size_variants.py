"""Variants of requests in other sizes, to fit seconds over quantities.

small media, more media      each medium smaller, or three times each medium
long prompt                  more words
short answer, long answer    a fixed number of tokens, even if the model would stop earlier
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from omnibus.profiling.measured_model import SPEECH, Subject

SMALL_MEDIA, MORE_MEDIA, LONG_PROMPT, SHORT_ANSWER, LONG_ANSWER = (
    "small media",
    "more media",
    "long prompt",
    "short answer",
    "long answer",
)
#: Copies of each medium, the factor for a side or the seconds of a smaller one, and the factor and the additional words
#: of a longer prompt.
_MEDIA_COUNT, _SMALL_PART, _PROMPT_FACTOR, _PROMPT_WORDS = 3, 0.5, 3, 64
#: Tokens of answers if the workload sets no limit, and factors of the limit if it does.
_ANSWER_TOKENS, _ANSWER_PARTS = (16, 96), (0.35, 1.6)
#: Sizes assumed for a file or a URL.
_USUAL_SIZES: dict[str, Any] = {"image": [448, 448], "audio": 4.0, "video": [224, 224, 2]}
#: Pixels of a side that a smaller medium keeps.
_MIN_SIDE_PIXELS = 56


def relevant_variants(subject: Subject, component: str) -> tuple[str, ...]:
    """Return the variants relevant to the seconds of ``component``."""
    if component in subject.encoder_components:
        return SMALL_MEDIA, MORE_MEDIA
    return (SHORT_ANSWER, LONG_ANSWER) if component in SPEECH else (LONG_PROMPT, SHORT_ANSWER, LONG_ANSWER)


def vary_body(body: dict[str, Any], modalities: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and body of variants of ``body``, which has ``modalities``."""
    if modalities:
        yield SMALL_MEDIA, _with_content(body, lambda part: [_shrink_medium(part)])
        yield MORE_MEDIA, _with_content(body, lambda part: [part] * (_MEDIA_COUNT if _modality(part) else 1))
    yield LONG_PROMPT, _with_longer_prompt(body)
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    rest = {key: value for key, value in body.items() if key != "max_completion_tokens"}
    for index, name in enumerate((SHORT_ANSWER, LONG_ANSWER)):
        tokens = max(1, round(limit * _ANSWER_PARTS[index])) if limit else _ANSWER_TOKENS[index]
        yield name, {**rest, "max_tokens": tokens, "ignore_eos": True}


def _with_content(body: dict[str, Any], change: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """Return ``body`` with each part of content changed."""
    messages = [
        {**message, "content": [one for part in message["content"] for one in change(part)]}
        if isinstance(message["content"], list)
        else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


def _with_longer_prompt(body: dict[str, Any]) -> dict[str, Any]:
    *first, last = body["messages"]
    parts = last["content"] if isinstance(last["content"], list) else [{"type": "text", "text": str(last["content"])}]
    words = sum(_word_count(part) for part in parts)
    return {
        **body,
        "messages": [*first, {**last, "content": [*parts, {"words": (_PROMPT_FACTOR - 1) * words + _PROMPT_WORDS}]}],
    }


def _word_count(part: Any) -> int:
    if isinstance(part, dict) and "words" in part:
        return int(part["words"])
    text = part if isinstance(part, str) else part.get("text", "") if isinstance(part, dict) else ""
    return len(str(text).split())


def _modality(part: Any) -> str:
    """Return the modality of a part of content; empty for text."""
    if not isinstance(part, dict):
        return ""
    kind = part.get("type", "")
    if kind == "input_audio":
        return "audio"
    return next((each for each in _USUAL_SIZES if each in part or kind == f"{each}_url"), "")


def _shrink_medium(part: Any) -> Any:
    modality = _modality(part)
    if not modality:
        return part
    size = part.get(modality)
    size = _USUAL_SIZES[modality] if size is None or isinstance(size, str | dict) else size
    if not isinstance(size, list):
        return {modality: size * _SMALL_PART}
    sides = [max(min(side, _MIN_SIDE_PIXELS), int(side * _SMALL_PART)) for side in size[:2]]
    return {modality: [*sides, *(seconds * _SMALL_PART for seconds in size[2:])]}
