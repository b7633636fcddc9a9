"""A crowd of clients, drawn by a seed.

Each client has a request and the expected answer, and waits for it or disconnects.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx

from tests import models_oracle as oracle
from tests.e2e.questions import Question, data_url, make_image, make_question
from tests.e2e.system import System
from tests.unit.models import files

LEAVE, STREAM = 0.15, 0.5  # shares of well-formed requests: disconnects, and streams

_WORDS = ("bird", "sky", "green", "hills", "river", "light", "sea", "what", "is", "this", "cat", "dog")
_SIZES = ((90, 60), (60, 90), (120, 200), (56, 56))
_LONGEST = 32  # tokens of an answer
_PATIENCE = 0.3  # seconds until a client disconnects before a whole answer, at most
_DELTAS = 3  # of a stream, before a client disconnects, at most
_CONTEXT = 4096  # tokens of the model
_EACH = 12  # questions of a kind
_MARGIN = 1e-3  # between the first and the second choice of a token; closer ones are left to rounding


class Known(NamedTuple):
    """A question, its number of tokens, and the whole model's answer."""

    messages: list[Any]
    tokens: int
    text: str


class CrowdClient(NamedTuple):
    """One request; ``known`` is None if it is malformed.

    ``deltas``: disconnects after as many. ``patience``: disconnects after so many seconds. None: stays.
    """

    body: bytes
    known: Known | None
    stream: bool = False
    deltas: int | None = None
    patience: float | None = None


class CrowdOutcome(NamedTuple):
    """Outcome of a crowd.

    It contains the numbers of ``answered``, ``refused`` and ``left`` clients, and the errors in ``wrong``.
    """

    counts: Counter[str]
    wrong: list[str]


def make_questions(checkpoint: Path, dice: Random) -> list[Known]:
    """Questions of text and of one or two images, with expected answers.

    The whole model gives these answers.
    """

    def make_words() -> str:
        return " ".join(dice.choices(_WORDS, k=dice.randint(2, 24)))

    def draw_picture() -> tuple[str, bytes]:
        return make_image(dice.randrange(1000), *dice.choice(_SIZES))

    def collect_questions(make: Callable[[], Question]) -> list[Known]:
        candidates = (_make_known(checkpoint, make(), dice.randint(4, _LONGEST)) for _ in count())
        return list(islice(filter(None, candidates), _EACH))

    return [
        *collect_questions(lambda: make_question(make_words())),
        *collect_questions(lambda: make_question(draw_picture(), make_words())),
        *collect_questions(lambda: make_question(draw_picture(), "and", draw_picture(), make_words())),
    ]


def _make_known(checkpoint: Path, question: Question, tokens: int) -> Known | None:
    """Return None if rounding could change the answer.

    Such an answer may depend on other requests in a step.
    """
    if oracle.vl_margin(checkpoint, question.plain, question.media, tokens) < _MARGIN:
        return None
    _, text = oracle.vl_answer(checkpoint, question.plain, question.media, tokens)
    return Known(question.messages, tokens, text)


def make_crowd(
    questions: Sequence[Known], models: Sequence[str], size: int, bad: float, dice: Random
) -> list[CrowdClient]:
    """Run ``size`` clients that use each of ``models`` equally often.

    A share of ``bad`` requests is malformed.
    """
    malformed_bodies = _malformed_bodies(questions[0])
    clients = []
    for number in range(size):
        model = models[number % len(models)]
        if dice.random() < bad:
            clients.append(CrowdClient(next(malformed_bodies)(model), None))
        else:
            clients.append(_make_client(dice.choice(questions), model, dice))
    return clients


def _make_client(question: Known, model: str, dice: Random) -> CrowdClient:
    stream, leaves = dice.random() < STREAM, dice.random() < LEAVE
    return CrowdClient(
        _make_body(model, question, stream=stream),
        question,
        stream,
        deltas=dice.randint(0, _DELTAS) if leaves and stream else None,
        patience=dice.uniform(0, _PATIENCE) if leaves and not stream else None,
    )


def _make_body(model: str, question: Known, **more: Any) -> bytes:
    fields = {"messages": question.messages, "max_tokens": question.tokens, "temperature": 0}
    return json.dumps({"model": model, **fields, **more}).encode()


def _malformed_bodies(question: Known) -> Iterator[Callable[[str], bytes]]:
    """Bodies for a model, of one kind after the other: a broken image, no JSON, an unknown parameter, too long."""
    png = files.make_picture(1)
    broken_png = png[: len(png) // 3] + bytes(len(png) // 3) + png[2 * len(png) // 3 :]
    url = {"type": "image_url", "image_url": {"url": data_url("image/png", broken_png)}}
    picture = question._replace(messages=[{"role": "user", "content": [url, {"type": "text", "text": "describe"}]}])
    long = question._replace(messages=[{"role": "user", "content": "cat dog " * _CONTEXT}])
    while True:
        yield lambda model: _make_body(model, picture)
        yield lambda model: _make_body(model, question)[:-9]
        yield lambda model: _make_body(model, question, bestof=3)
        yield lambda model: _make_body(model, long)


async def run_crowd(system: System, clients: Sequence[CrowdClient], at_once: int) -> CrowdOutcome:
    """Run all clients, with a limit on those in flight."""
    outcome = CrowdOutcome(Counter(), [])
    queue = iter(clients)

    async def run_clients(http: httpx.AsyncClient) -> None:
        for client in queue:
            try:
                kind, text = await _send_request(http, client)
            except (httpx.HTTPError, ValueError, LookupError) as error:
                kind, text = "wrong", repr(error)
            outcome.counts[kind] += 1
            if not _is_right(client, kind, text):
                outcome.wrong.append(f"{kind}: {text[:300]!r}, {client.body[-200:]!r}")

    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=system.url, timeout=60, limits=limits) as http, asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(run_clients(http))
    return outcome


def _is_right(client: CrowdClient, kind: str, text: str) -> bool:
    question = client.known
    if question is None:
        return kind == "refused"
    return text == question.text if kind == "answered" else kind == "left" and question.text.startswith(text)


async def _send_request(http: httpx.AsyncClient, client: CrowdClient) -> tuple[str, str]:
    """Send one request; return its outcome and the received text."""
    if client.stream:
        return await _read_stream(http, client)
    try:
        async with asyncio.timeout(client.patience):
            answer = await http.post("/v1/chat/completions", content=client.body)
    except TimeoutError:
        return "left", ""
    if answer.status_code == 200:
        return "answered", answer.json()["choices"][0]["message"]["content"]
    return "refused" if answer.status_code == 400 else "wrong", answer.text


async def _read_stream(http: httpx.AsyncClient, client: CrowdClient) -> tuple[str, str]:
    text, deltas = "", 0
    async with http.stream("POST", "/v1/chat/completions", content=client.body) as answer:
        if answer.status_code != 200:
            return "wrong", (await answer.aread()).decode()
        if client.deltas == 0:
            return "left", ""
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return "answered", text
            if '"error"' in line:
                return "wrong", line
            if line.startswith("data: ") and (piece := json.loads(line[6:])["choices"][0]["delta"].get("content")):
                text += piece
                deltas += 1
                if deltas == client.deltas:
                    return "left", text
    return "wrong", text
