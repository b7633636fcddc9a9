"""Every subject on the bus, built and parsed in one place.

| subject                             | carries                                            |
|-------------------------------------|----------------------------------------------------|
| ``omnibus.task.<unit-task>``        | an invocation, for any executor (hands and tools)   |
| ``omnibus.task.<unit-task>.<exec>`` | a source-routed invocation                          |
| ``omnibus.edge.<executor>``         | handles and stream chunks, producer to consumer     |
| ``omnibus.edge.<executor>.role``    | another role of its model, for an executor          |
| ``omnibus.reply.<gateway>``         | accepted, busy, chunks, done, failed                |
| ``omnibus.end.<invocation>``        | done, cancelled, expired, failed                    |
| ``omnibus.inv.<app>.<invocation>``  | the recorded invocation and its end                 |
| ``omnibus.event.<kind>``            | executors, gateways, nodes, their load, plan epochs |
| ``omnibus.census.<asker>.<kind>``   | status of executors, gateways and nodes, for an asker |
| ``omnibus.beat.<gateway>``          | heartbeats of executors, for a gateway that relays them |
| ``omnibus.node.<node>``             | the end of an invocation, for a node's sidecar      |
| ``omnibus.agent.<node>``            | the executors that a machine's agent must run       |
| ``omnibus.agent.<node>.drain``      | asks an agent to drain its machine                  |
| ``omnibus.event.deadletter.<app>.<invocation>`` | an input that crashed or failed an engine |
| ``omnibus.replay``                  | a recorded invocation to run again                  |
| ``omnibus.media``                   | which gateway has some content, for all gateways    |
| ``omnibus.media.<gateway>``         | a part of content to read, for the gateway that has it |
| ``omnibus.response.<id>``           | events of a stored response, or realtime session    |
| ``omnibus.holder.<gateway>``        | asks a gateway whether it makes a stored response, or to stop |
"""

import re
from functools import lru_cache
from typing import NamedTuple

ROOT = "omnibus"
REPLAY = f"{ROOT}.replay"
MEDIA = f"{ROOT}.media"
RECORDS = f"{ROOT}.inv.>"
DEAD = f"{ROOT}.event.deadletter.>"
RESPONSE_EVENTS = f"{ROOT}.response.>"


class StreamSpec(NamedTuple):
    """A stream of JetStream, and the subjects that it keeps."""

    name: str
    subjects: str


INVOCATIONS = StreamSpec("OMNIBUS_INVOCATIONS", RECORDS)
DEADLETTERS = StreamSpec("OMNIBUS_DEADLETTERS", DEAD)
RESPONSES = StreamSpec("OMNIBUS_RESPONSES", RESPONSE_EVENTS)

#: Kinds of ``omnibus.event.<kind>``.
EXECUTOR, GATEWAY, CENSUS, PLAN, GONE, LOAD = "executor", "gateway", "census", "plan", "gone", "load"
#: Status of a machine's agent.
AGENT = "agent"
#: Status of a node's sidecar: a new one, for all, and its repeats, for gateways and observers.
NODE, NODE_BEAT = "node", "nodebeat"
#: Heartbeats that a relay received, and the relay's announcement.
DIGEST, RELAY = "digest", "relay"
#: Another gateway now sends a streamed answer.
CLAIM = "claim"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


@lru_cache(4096)
def subject_token(text: str) -> str:
    """Return ``text`` as one subject token: dots, blanks and wildcards become ``_``."""
    return _UNSAFE.sub("_", text) or "_"


def task_name(kind: str, model: str, component: str) -> str:
    """Return the default name of the unit task of ``component`` of ``model``."""
    return subject_token(f"{kind}-{model}-{component}")


def task_subject(unit_task: str, executor: str = "") -> str:
    """Return the subject for all executors of ``unit_task``, or for one."""
    return f"{ROOT}.task.{unit_task}.{executor}" if executor else f"{ROOT}.task.{unit_task}"


def edge_subject(executor: str) -> str:
    return f"{ROOT}.edge.{executor}"


def no_responders_prefix(executor: str) -> str:
    """Prefix of the reply-to of an executor's frames: the server replies there without a subscriber."""
    return f"{ROOT}.edge.{executor}.unheard"


def role_subject(executor: str) -> str:
    """Return the subject for role assignments to ``executor``."""
    return f"{ROOT}.edge.{executor}.role"


def node_subject(node: str) -> str:
    """Return the subject of the sidecar of ``node``."""
    return f"{ROOT}.node.{subject_token(node)}"


def assignment_subject(node: str) -> str:
    """Return the subject for the executors that the agent of ``node`` must run."""
    return f"{ROOT}.agent.{subject_token(node)}"


def drain_subject(node: str) -> str:
    """Return the subject for requests to drain ``node``."""
    return f"{assignment_subject(node)}.drain"


def reply_subject(gateway: str) -> str:
    return f"{ROOT}.reply.{gateway}"


def refused_subject(gateway: str, invocation: str, attempt: int, executor: str) -> str:
    """Return the reply-to of a dispatch; only the server's no-responders status arrives there."""
    return f"{ROOT}.reply.{gateway}.{invocation}.{attempt}.{executor}"


def parse_refused_subject(subject: str) -> tuple[str, int, str]:
    """Return invocation, attempt and executor of a ``refused`` subject."""
    *_, invocation, attempt, executor = subject.split(".")
    return invocation, int(attempt), executor


def end_subject(invocation: str) -> str:
    return f"{ROOT}.end.{invocation}"


def record_subject(app: str, invocation: str) -> str:
    return f"{ROOT}.inv.{subject_token(app)}.{invocation}"


def dead_letter_subject(app: str, invocation: str) -> str:
    return f"{ROOT}.event.deadletter.{subject_token(app)}.{invocation}"


def media_subject(gateway: str) -> str:
    """Return the subject for reads of the files of ``gateway``."""
    return f"{MEDIA}.{gateway}"


def response_subject(response: str) -> str:
    """Return the subject for events of a stored response or realtime session."""
    return f"{ROOT}.response.{response}"


def holder_subject(gateway: str) -> str:
    """Return the subject for queries about the stored responses that ``gateway`` makes."""
    return f"{ROOT}.holder.{gateway}"


def census_subject(asker: str) -> str:
    """Return the prefix of the subjects of the answers to a census of ``asker``."""
    return f"{ROOT}.census.{asker}"


def heartbeat_subject(relay: str) -> str:
    """Return the subject for heartbeats to ``relay``, a gateway."""
    return f"{ROOT}.beat.{relay}"


def event_subject(kind: str) -> str:
    return f"{ROOT}.event.{kind}"
