"""Invocations from the record stream: one, or the latest that match a query."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from omnibus.bus import Bus, Stored
from omnibus.bus.subjects import INVOCATIONS
from omnibus.errors import OmnibusError
from omnibus.graph import Invocation
from omnibus.recording import records
from omnibus.recording.records import EndRecord
from omnibus.recording.steps import Step, build_steps
from omnibus.recording.waterfall import Summary, SummaryPage, Waterfall, build_summary, build_waterfall

#: Records that are read at once, and most records that one query reads.
READ_BATCH_COUNT, MAX_READ_RECORDS = 256, 4096
#: Seconds by which the records of several gateways may be out of order.
_DISORDER_SECONDS = 60.0
#: Most invocations on a page.
MAX_LISTED = 200


class Query(NamedTuple):
    """Search criteria. ``words`` are found anywhere in ids, app, model, type, path, code and executors."""

    words: tuple[str, ...] = ()
    model: str = ""
    app: str = ""
    status: str = ""
    #: Range of their arrival in Unix seconds, and of their duration in seconds. A running one has lasted until now.
    since: float = 0.0
    until: float = math.inf
    min_seconds: float = 0.0
    max_seconds: float = math.inf
    limit: int = 50
    #: Number in the stream before which to search; 0: the latest.
    before: int = 0


class History:
    """Reads the record stream of ``bus``; keeps nothing."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def get_waterfall(self, id: str) -> Waterfall:
        """Return the waterfall of an invocation. Raises ``NotFound``."""
        return build_waterfall(*await records.find_record(self._bus, id))

    async def get_steps(self, id: str) -> tuple[Step, ...]:
        """Return the steps of an invocation. Raises ``NotFound``."""
        return build_steps(*await records.find_record(self._bus, id))

    async def find_page(self, query: Query) -> SummaryPage:
        """Return the latest that match, newest first. ``next`` may be set even if the page is not full."""
        if not query.before:  # first page: wait for records of requests that any gateway has just answered
            await asyncio.sleep(records.RECORDED_WITHIN_SECONDS)
        summaries: list[Summary] = []
        ends: dict[str, EndRecord] = {}
        below, read = query.before, 0
        while True:
            messages = await self._bus.read_latest(INVOCATIONS, READ_BATCH_COUNT, below)
            for each in reversed(messages):
                below = each.number
                brief = await self._summarize_match(each, ends, query)
                if brief is not None:
                    summaries.append(brief)
                if len(summaries) >= query.limit:
                    return SummaryPage(tuple(summaries), below)
            if messages and _is_older(messages[0], query.since):
                return SummaryPage(tuple(summaries))
            read += len(messages)
            if not messages or below <= 1:
                return SummaryPage(tuple(summaries))
            if read >= MAX_READ_RECORDS:
                return SummaryPage(tuple(summaries), below)

    async def _summarize_match(self, message: Stored, ends: dict[str, EndRecord], query: Query) -> Summary | None:
        """Return the summary of the invocation in ``message`` if it matches.

        Otherwise returns None. Ends are read first, because the stream is read backwards; they are added to ``ends``.
        """
        try:
            invocation, end_record = records.decode_message(message.data)
        except OmnibusError:  # of another version
            return None
        if end_record is not None:
            ends.setdefault(end_record.inv, end_record)
        if invocation is None:
            return None
        over = ends.pop(invocation.id, None)
        if not _matches_scope(invocation, query):
            return None
        if over is None and query.before:  # its end may be after the start of this page
            over = (await records.find_record(self._bus, invocation.id)).ended
        return build_summary(invocation, over) if _matches_query(invocation, over, query) else None


def _is_older(message: Stored, since: float) -> bool:
    """Return True if records before ``message`` are older than ``since``."""
    try:
        invocation, _ = records.decode_message(message.data)
    except OmnibusError:  # of another version
        return False
    return invocation is not None and invocation.created < since - _DISORDER_SECONDS


def _matches_scope(invocation: Invocation, query: Query) -> bool:
    """Return True if model and app match; an end does not change them."""
    models = {invocation.model, *(node.model for node in invocation.nodes)}
    return (not query.model or query.model in models) and query.app in ("", invocation.app)


def _matches_query(invocation: Invocation, end_record: EndRecord | None, query: Query) -> bool:
    brief = build_summary(invocation, end_record)
    if query.status not in ("", brief.status):
        return False
    took = brief.seconds if brief.seconds is not None else time.time() - brief.created
    if not query.since <= brief.created <= query.until or not query.min_seconds <= took <= query.max_seconds:
        return False
    search_values = [
        *msgspec.to_builtins(brief).values(),
        *_final_route(invocation, end_record),
        *_component_names(invocation),
    ]
    text = " ".join(str(each) for each in search_values).lower()
    return all(word.lower() in text for word in query.words)


def _final_route(invocation: Invocation, end_record: EndRecord | None) -> Sequence[str]:
    return (end_record.route if end_record is not None else ()) or invocation.route


def _component_names(invocation: Invocation) -> Sequence[str]:
    return [node.component for node in invocation.nodes]
