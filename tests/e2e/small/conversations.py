"""Voice sessions with a simulated model whose clients reconnect to any gateway."""

import asyncio
import base64
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidHandshake, WebSocketException

from tests.e2e.small.streams import MODEL

#: Seconds between two tries to connect where every gateway has refused one, and for which one that did is not tried
#: again while another one is left.
RETRY_SECONDS, AVOID_SECONDS = 0.02, 0.5
#: Seconds that a session may take.
PATIENCE = 120.0
#: Steps of a gap.
CONNECTS, OPENED, RESUMED = "connects", "open", "session.resumed"


@dataclass
class Gap:
    """Time without audio or text after a connection broke.

    ``begin`` is in monotonic seconds. The gap contains the events until its end, with their seconds after ``begin``.
    ``seed`` is that of the answer which is generated again.
    """

    begin: float
    seed: int
    steps: list[tuple[float, str]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.steps[-1][0]

    def find_last(self, prefix: str) -> float:
        """Seconds after its begin at which ``prefix`` began last, or 0."""
        return next((seconds for seconds, step in reversed(self.steps) if step.startswith(prefix)), 0.0)


@dataclass
class Conversation:
    """One session: ``turns`` questions and their answers, as its client has them."""

    urls: Sequence[str]
    seed: int
    turns: int = 1
    text: str = ""
    sound: bytes = b""
    finished: int = 0
    events: int = 0
    resumed: int = 0
    gaps: list[Gap] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _token: str = ""
    _last: str = ""
    _gap: Gap | None = None  # that has begun
    _ids: set[str] = field(default_factory=set)
    _answered: set[str] = field(default_factory=set)
    _sent: set[str] = field(default_factory=set)  # on this connection
    _avoided: dict[int, float] = field(default_factory=dict)  # gateways, until when (monotonic seconds)

    async def hold(self, first: int) -> None:
        """Have it, beginning at gateway ``first``."""
        gateway = first
        async with asyncio.timeout(PATIENCE):
            while self.finished < self.turns:
                try:
                    self._note_step(CONNECTS)
                    async with websockets.connect(self._url(gateway), max_size=None) as socket:
                        self.resumed += bool(self._last)
                        self._note_step(f"{OPENED} at gateway {gateway}")
                        await self._converse(socket)
                except (OSError, WebSocketException, InvalidHandshake, TimeoutError) as error:
                    self._gap = self._gap or Gap(time.monotonic(), self.seed)
                    refusal = error.response if isinstance(error, websockets.InvalidStatus) else None
                    details = (
                        f" {refusal.status_code} {bytes(refusal.body or b'')[:200]!r}" if refusal is not None else ""
                    )
                    self._note_step(f"gateway {gateway}: {type(error).__name__}{details}")
                    if refusal is not None and refusal.status_code < 500:
                        raise AssertionError(refusal.body) from error
                    gateway = await self._next_gateway(gateway)

    async def _next_gateway(self, left: int) -> int:
        """Choose the gateway to try after the one that has ``left``.

        It is random among those that did not refuse just now, as behind a load balancer. Always taking the next one
        could follow the order in which gateways are killed.
        """
        now = time.monotonic()
        self._avoided[left] = now + AVOID_SECONDS
        other_gateways = [each for each in range(len(self.urls)) if each != left] or [left]
        available = [each for each in other_gateways if self._avoided.get(each, 0.0) <= now]
        if not available:
            await asyncio.sleep(RETRY_SECONDS)
        return random.choice(available or other_gateways)

    def _url(self, gateway: int) -> str:
        base = self.urls[gateway].replace("http", "ws", 1) + "/v1/realtime"
        if not self._last:
            return f"{base}?model={MODEL}&resumable=true"
        return f"{base}?resume={self._token}&last_event_id={self._last}"

    async def _converse(self, socket: ClientConnection) -> None:
        self._sent, resuming = set(), bool(self._last)
        while self.finished < self.turns:
            event = json.loads(await socket.recv())
            self._take(event)
            # Missed events arrive first, and may contain the answers to sent ones.
            resuming = resuming and event["type"] != RESUMED
            if not resuming and event["type"] in (
                "conversation.created",
                "session.resumed",
                "session.updated",
                "response.done",
            ):
                await self._ask(socket)

    async def _ask(self, socket: ClientConnection) -> None:
        """Send requests without an answer; a gateway that died may have lost them."""
        audio, number = {"input": {"turn_detection": None}}, self.finished
        content = [{"type": "input_text", "text": f"question {self.seed} {number}"}]
        item = {"id": f"item_{number}", "type": "message", "role": "user", "content": content}
        requests: dict[str, dict[str, Any]] = {
            "session.updated": {
                "type": "session.update",
                "session": {"type": "realtime", "seed": self.seed, "audio": audio},
            },
            f"item_{number}": {"type": "conversation.item.create", "item": item},
            f"response {number}": {"type": "response.create", "response": {}},
        }
        for answer, event in requests.items():
            if number < self.turns and answer not in self._answered | self._sent:
                self._sent.add(answer)
                await socket.send(json.dumps(event))

    def _take(self, event: dict[str, Any]) -> None:
        type = event["type"]
        self.events += 1
        if event["event_id"] in self._ids:
            self.wrong.append(f"{type} came twice")
        self._ids.add(event["event_id"])
        self._last = event["event_id"]
        self._note_answer(type, event)
        if type == "response.output_audio_transcript.delta":
            self.text += event["delta"]
        elif type == "response.output_audio.delta":
            self.sound += base64.b64decode(event["delta"])
        elif type == "error":
            self.wrong.append(str(event["error"]))
        if type.endswith(".delta") and self._gap is not None:
            self._note_step(type)
            self.gaps.append(self._gap)
            self._gap = None

    def _note_step(self, step: str) -> None:
        if self._gap is not None:
            self._gap.steps.append((time.monotonic() - self._gap.begin, step))

    def _note_answer(self, type: str, event: dict[str, Any]) -> None:
        """Remember acknowledgements of the gateway."""
        if type == "session.created":
            self._token = event["session"]["resume_token"]
        elif type == RESUMED:
            self._note_step(type)
        elif type == "session.updated":
            self._answered.add(type)
        elif type == "conversation.item.added":
            self._answered.add(event["item"]["id"])
        elif type == "response.created":
            self._answered.add(f"response {self.finished}")
        elif type == "response.done":
            self.finished += 1
            if event["response"]["status"] != "completed":
                self.wrong.append(f"{event['response']['status']}: {event['response']['status_details']}")
