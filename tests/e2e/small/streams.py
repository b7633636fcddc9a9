"""Long streamed answers of a simulated model, and clients that assemble them."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.system import declare_model

MODEL = "omni"
#: How long everything takes, in seconds; answers have about 80 tokens of 20 ms.
TIMES: dict[str, Any] = {
    "seed": 1,
    "default": {
        "components": {
            "vision": {"batch": {"base": 0.01}, "tokens": {"image": 16}, "width": 8},
            "audio": {"batch": {"base": 0.01}, "tokens": {"audio": 16}, "width": 8},
            "thinker": {
                "slots": 1024,
                "batch": {"base": 0.004},
                "step": {"base": 0.02},
                "steps": {"mean": 80, "most": 96},
                "width": 8,
            },
            "talker": {"slots": 1024, "batch": {"base": 0.004}, "step": {"base": 0.01}, "steps": {"per": 2}},
            "vocoder": {"slots": 64, "batch": {"base": 0.004}, "samples": 480, "rate": 24000},
        }
    },
}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "pcm16"}}
PATH = "/v1/chat/completions"


def make_model(directory: Path, times: dict[str, Any] = TIMES) -> dict[str, Any]:
    """One executor of everything."""
    checkpoint = directory / "times.json"
    checkpoint.write_text(json.dumps(times))
    components = ["vision", "audio", "thinker", "talker", "vocoder"]
    options = {"M": {"components": components, "service": "llm"}}
    return declare_model("qwen2_5_omni", checkpoint, options=options, paths=[{"options": ["M"], "share": 1}])


def question_body(number: int, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"question {number}"}
    return {"model": MODEL, "messages": [message], "seed": number, **more}


@dataclass
class ResumableAnswer:
    """A client's part of one streamed answer."""

    text: str = ""
    sound: bytes = b""
    last: str = ""  # id of the last event
    token: str = ""
    events: int = 0
    whole: bool = False
    finished: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None

    @property
    def content(self) -> tuple[str, bytes]:
        return self.text, self.sound

    def take(self, line: str) -> None:
        if line.startswith("id: "):
            self._id = line[4:]
        elif line == "data: [DONE]":
            self.whole = True
        elif line.startswith("data: "):
            self._take(json.loads(line[6:]))

    _id: str = ""

    def _take(self, data: dict[str, Any]) -> None:
        if "error" in data:
            self.error = data["error"]
            return
        self.events += 1
        self.last = self._id or self.last
        for choice in data["choices"]:
            audio = choice["delta"].get("audio") or {}
            self.text += (choice["delta"].get("content") or "") + audio.get("transcript", "")
            self.sound += base64.b64decode(audio.get("data", ""))
            if choice["finish_reason"]:
                self.finished.append(choice["finish_reason"])


async def read_lines(
    http: httpx.AsyncClient, answer: ResumableAnswer, body: dict[str, Any] | None
) -> AsyncIterator[str]:
    """Lines of a new answer, or of its rest. Raises ``httpx.TransportError`` on a lost connection."""
    if body is not None:
        request = http.build_request("POST", PATH, json=body, headers={"x-omnibus-continue": "true"})
    else:
        headers = {"last-event-id": answer.last} if answer.last else {}
        request = http.build_request("GET", f"{PATH}/{answer.token}/events", headers=headers)
    response = await http.send(request, stream=True)
    try:
        if response.status_code != 200:
            await response.aread()
            answer.error = response.json()["error"]
            return
        answer.token = response.headers.get("x-omnibus-continue", "")
        async for line in response.aiter_lines():
            yield line
    finally:
        await response.aclose()


async def read_answer(
    http: httpx.AsyncClient, answer: ResumableAnswer, body: dict[str, Any] | None = None
) -> ResumableAnswer:
    """Read an answer, or its rest, as far as it arrives."""
    try:
        async for line in read_lines(http, answer, body):
            answer.take(line)
    except httpx.TransportError:
        pass  # its gateway is gone
    return answer
