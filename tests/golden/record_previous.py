"""``python record_previous.py FILE``: record messages and schemas of an earlier build.

``tests/contract/test_upgrade.py`` uses them. Run it in a tree of that build, with this file's path and that tree as
PYTHONPATH:

    git archive COMMIT | tar -x -C TREE
    cd TREE && PYTHONPATH=TREE:TREE/shared python .../tests/golden/record_previous.py FILE COMMIT

It sends a chat and a spoken chat through a whole gateway with toy executors. It writes all messages of the bus as text,
the plans with their planner's events, and the JSON schema of each kind of message. The schema defines which messages
that build rejects. ``zip_previous.py`` writes that build's code of sidecars in the same way.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from omnibus import __version__
from omnibus import plan as plans
from omnibus.bus import messages, subjects
from omnibus.graph import Invocation
from omnibus.plan import Plan
from omnibus.recording.records import EndRecord
from tests.unit.gateway.house import OMNI, VL, ToyGateway, start_toy_gateway

SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}
#: Kind of a message to its type. Messages of these two hold several.
TYPES: dict[str, Any] = {
    "reply": messages.Reply,
    "edge": messages.Edge,
    "end": messages.InvocationEnd,
    "executor": messages.ExecutorStatus,
    "gateway": messages.GatewayStatus,
    "load": messages.LoadEvent,
    "plan_event": messages.PlanEvent,
    "invocation": Invocation,
    "end_record": EndRecord,
    "plan": Plan,
}


async def record_build(file: Path, commit: str) -> None:
    """Write ``file``."""
    messages: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as directory:
        async with start_toy_gateway(Path(directory)) as home:
            _record_bus(home, messages)
            answers = [await _ask_model(home, VL, "EL"), await _ask_model(home, OMNI, "Th>Ta>V", **SPOKEN)]
            await asyncio.sleep(1.0)  # heartbeats, and the records
            plans = [_plan_of(home)]
            messages = list(
                {_message_key(each): each for each in messages}.values()
            )  # before all of them say that they end
    schemas = {name: msgspec.json.schema(kind) for name, kind in TYPES.items()}
    content = {"commit": commit, "version": __version__, "answers": answers, "messages": messages, "schemas": schemas}
    content["plans"] = plans
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def _plan_of(home: ToyGateway) -> dict[str, str]:
    """A plan as that build's planner stores it, and its event."""
    plan = home.router.plan
    assert plan is not None
    event = msgspec.json.encode(messages.PlanEvent(plan.epoch)).decode()
    return {"plan": plans.encode_plan(plan).decode(), "subject": subjects.event_subject(subjects.PLAN), "event": event}


def _message_key(message: dict[str, str]) -> tuple[str, str]:
    """Key of a message, by which similar ones are deduplicated.

    Of the heartbeats of an executor, the last one is stored.
    """
    beat = message["subject"] == "omnibus.event.executor"
    return message["subject"], json.loads(message["data"])["id"] if beat else message["data"]


def _record_bus(home: ToyGateway, messages: list[dict[str, str]]) -> None:
    publish = home.bus.publish

    def record_message(subject: str, data: bytes, **more: Any) -> None:
        messages.append({"subject": subject, "data": data.decode()})
        publish(subject, data, **more)

    home.bus.publish = record_message  # type: ignore[method-assign]


async def _ask_model(home: ToyGateway, model: str, path: str, **more: Any) -> dict[str, Any]:
    await home.all_of(model)
    response = await home.ask(model, "hello there", path=path, seed=5, **more)
    assert response.status_code == 200, response.text
    await home.emptied()
    message = response.json()["choices"][0]["message"]
    return {"id": response.headers["x-request-id"], "model": model, "text": message["content"]}


if __name__ == "__main__":
    asyncio.run(record_build(Path(sys.argv[1]), sys.argv[2]))
