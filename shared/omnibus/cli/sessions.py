"""``omnibus show SESSION``: shows the events of a realtime session, with their times."""

import argparse
from collections.abc import Iterator

from omnibus.bus.nats import NatsBus
from omnibus.cli.format.tables import fit_text
from omnibus.cli.output import print_json
from omnibus.recording.sessions import SessionTimeline, build_timeline, read_session

#: Prefix of the ids of sessions; ids of invocations do not have it.
SESSION_PREFIX = "sess_"


async def show_session(bus: NatsBus, options: argparse.Namespace) -> int:
    """Print the session ``options.id``. Raises ``NotFound`` if it is not logged."""
    timeline = build_timeline(options.id, (await read_session(bus, options.id)).entries)
    if options.json:
        print_json({"session": timeline})
    else:
        print(fit_text("\n".join(session_lines(timeline))))
    return 0


def session_lines(timeline: SessionTimeline) -> Iterator[str]:
    """Yield the counts, responses and then all events of a session."""
    cut = sum(each.reason == "turn_detected" for each in timeline.responses)
    yield f"{timeline.id}  {timeline.model}  {timeline.over or 'open, or can be resumed'}"
    counts = [
        f"turns {len(timeline.turns)}",
        f"responses {len(timeline.responses)}",
        f"interrupted {cut}",
        f"resumed {len(timeline.resumed)}",
        f"errors {timeline.errors}",
    ]
    yield f"counts  {', '.join(counts)}"
    for number, each in enumerate(timeline.responses, 1):
        wait = f"first output after {each.waited * 1000:.0f} ms" if each.waited is not None else "no output"
        truncation = f", heard {each.truncated_ms} ms" if each.truncated_ms is not None else ""
        ids = f"  {', '.join(each.invocations)}" if each.invocations else ""
        yield f"  [{number}] {each.status:<11} {wait}, {each.audio_seconds:.2f} s of audio{truncation}{ids}"
    yield "times   seconds since it began"
    for at, event in timeline.moments:
        yield f"  {at:9.3f}  {event}"
