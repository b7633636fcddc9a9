"""Recorded invocations as requests of a simulation."""

import time

import msgspec

from omnibus.bus import Delivery
from omnibus.bus.messages import encode
from omnibus.graph import WIRE_VERSION, GraphNode, Invocation, encode_invocation
from omnibus.recording.records import EndRecord, RecordedAnswer
from omnibus_planner.whatif.records import recorded_arrivals

NODE = GraphNode("think-vl-thinker", "thinker", {}, "", ())


class WhatIfStream:
    """A record stream with these bodies."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = bodies

    async def read_records(self, subject: str) -> list[Delivery]:
        return [Delivery(subject, body) for body in self.bodies]


def make_invocation(id: str, created_at: float, **fields: object) -> Invocation:
    record = Invocation(
        WIRE_VERSION,
        id,
        "chat",
        "vl",
        "vision+thinker",
        "E>L",
        1,
        0,
        created_at,
        created_at + 60,
        "reply",
        (NODE,),
        (),
        ("EL",),
        ("x",),
    )
    return msgspec.structs.replace(record, **fields)


async def test_requests_of_the_last_minutes_come_again_with_the_sizes_of_their_answers():
    now = time.time()
    usage = {"prompt_tokens": 300, "completion_tokens": 40, "image_tokens": 256, "total_tokens": 340}
    end_record = EndRecord("b", "done", now - 50, now - 48, answer=RecordedAnswer(usage=usage, audio_seconds=2.5))
    stream = WhatIfStream(
        encode_invocation(make_invocation("a", now - 500)),
        encode_invocation(make_invocation("b", now - 50)),
        encode_invocation(make_invocation("b", now - 50, attempt=1)),
        encode_invocation(make_invocation("c", now - 40, type="thinker")),
        encode_invocation(make_invocation("d", now - 30, replay_of="b")),
        encode_invocation(make_invocation("e", now - 20, model="other")),
        encode(end_record),
        b"{}",
    )

    arrivals = await recorded_arrivals(stream, {"vl"}, 120.0)  # type: ignore[arg-type]  # what it reads of a bus

    assert [(round(each.at, 3), each.kind) for each in arrivals] == [(0.0, "vision+thinker"), (10.0, "thinker")]
    assert arrivals[0].sizes == {
        "prompt_tokens": 300.0, "completion_tokens": 40.0, "image_tokens": 256.0, "speech_seconds": 2.5,
    }  # fmt: skip
    assert arrivals[1].sizes == {}
