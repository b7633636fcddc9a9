"""One session without a socket, played operation by operation: each event gets its answer or an error that names it."""

import asyncio
import base64
import json
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

from omnibus.errors import Overloaded
from omnibus.recording.sessions import SessionEntry, read_session
from omnibus.service import until_cancelled
from omnibus_gateway.realtime.config import ResumeToken
from omnibus_gateway.realtime.event_sender import EventSender, SessionLog
from omnibus_gateway.realtime.restored import RestoredSession
from omnibus_gateway.realtime.session import RealtimeSession
from omnibus_gateway.realtime.turns import MAX_TURNS, SessionContext
from omnibus_gateway.tasks.recognition import RecordingReader
from tests.unit.gateway.house import OMNI, ToyGateway
from tests.unit.gateway.realtime_account import SILENCE, Account, Event
from tests.unit.gateway.realtime_operations import BROKEN, CLIP, ITEMS, RESPONSES, SPOKEN, UPDATES

#: Time limit of each step, for a busy machine.
PATIENCE = 10.0
#: Maximum items of a conversation here, so that it fills up soon.
MOST_ITEMS = 4
#: Maximum bytes of a session with a tight limit.
FEW_BYTES = 60_000


class Ledger:
    """A counter of the bytes that a session reports."""

    def __init__(self, most: int) -> None:
        self.held, self.most = 0, most

    def count_bytes(self, more: int) -> None:
        if more > 0 and self.held + more > self.most:
            raise Overloaded("full")
        self.held += more


class RecordingEventSender(EventSender):
    """A sender that records events as posted, until it is closed."""

    def __init__(self, account: Account, log: SessionLog) -> None:
        super().__init__(self._count_sent, PATIENCE, log)
        self.account = account
        self.batch: list[Event] = []
        self.faults: list[AssertionError] = []
        self.sent = account.count
        self.shut = False

    async def _count_sent(self, _: str) -> None:
        self.sent += 1

    def post_texts(self, texts: Any, entry: SessionEntry | None = None) -> None:
        super().post_texts(texts, entry)
        for text in () if self.shut else texts:
            event = json.loads(text)
            self.batch.append(event)
            try:
                self.account.take(event)
            except (AssertionError, LookupError, ValueError) as error:  # the poster of the event would swallow it
                self.faults.append(AssertionError(f"{event}: {error!r}"))

    def close(self) -> None:
        self.shut = True
        super().close()


class Sequence:
    """One session, and the test's knowledge of it."""

    def __init__(self, home: ToyGateway, most: int) -> None:
        self.home = home
        self.most = most
        self.account = Account()
        self.token = ResumeToken.create()
        self.realtime = home.table.sessions
        self.number = 0
        config, self.abilities = self.realtime.begin_config(OMNI, None)
        self._open(config, SessionLog(home.bus, self.token.id), None)
        self.session.begin(str(self.token))

    def _open(self, config: Any, log: SessionLog, restored_session: RestoredSession | None) -> None:
        self.ledger = Ledger(self.most)
        self.outbox = RecordingEventSender(self.account, log)
        context = SessionContext(
            self.home.chat, self.home.chat, RecordingReader(self.home.chat.runs), self.abilities, int(time.time() + 3600), self.ledger.count_bytes,
            nullcontext, list, begins_early=True,
        )  # fmt: skip
        self.session = RealtimeSession(self.token.id, context, config, self.outbox, restored_session)
        self.sender = asyncio.get_running_loop().create_task(self.outbox.send_texts())

    # Operations

    async def play(self, operations: list[tuple[Any, ...]]) -> None:
        try:
            await self._play(operations)
        except BaseException as error:
            error.add_note(repr(operations))
            raise
        finally:
            await self._end("closed")
        assert not self.account.answers
        self._check_faults()

    async def _play(self, operations: list[tuple[Any, ...]]) -> None:
        for operation in operations:
            async with asyncio.timeout(PATIENCE):
                await getattr(self, f"_{operation[0]}")(*operation[1:])
            self._check_faults()
        await self._settle()
        for id in self.account.order:
            await self._send("conversation.item.retrieve", "conversation.item.retrieved", item_id=id)
        assert self.ledger.held == self.account.nbytes, (self.ledger.held, self.account.nbytes, self.account.items)

    def _check_faults(self) -> None:
        for fault in self.outbox.faults:
            raise fault

    async def _settle(self) -> None:
        """Wait until all started work is complete."""
        account = self.account
        async with asyncio.timeout(PATIENCE):
            while account.answers or account.transcribing or account.waits or self.outbox.sent < account.count:
                await asyncio.sleep(0.001)
                self._check_faults()

    async def _end(self, over: str) -> None:
        await self.session.close(over=over)
        await until_cancelled(self.sender)

    async def _send(self, type: str, answer: str, wrong: set[str] | str = "", **fields: Any) -> list[Event]:
        """Send an event and return the events received. It must be answered, or rejected with one of the codes
        ``wrong``.
        """
        self.number += 1
        id = f"mine_{self.number}"
        return await self._send_frame(json.dumps({"type": type, "event_id": id, **fields}), id, answer, wrong)

    async def _send_frame(self, frame: str, id: str | None, answer: str, wrong: set[str] | str) -> list[Event]:
        batch = self.outbox.batch
        batch.clear()
        await self.session.handle_text(frame)
        errors = [each["error"] for each in batch if each["type"] == "error"]
        codes = [each["code"] for each in errors if each["event_id"] == id]
        if self.account.waits and any(each["event_id"] in (None, id) for each in errors):
            self.account.waits = False  # the answer failed
        allowed_codes = {wrong} if isinstance(wrong, str) else wrong
        if codes:
            assert codes[0] in allowed_codes, (frame[:200], codes, allowed_codes)
        else:
            assert "" in allowed_codes, (frame[:200], allowed_codes)
            assert not answer or any(each["type"] == answer for each in batch), (frame[:200], batch)
        return list(batch)

    def _id(self, place: int) -> str:
        order = self.account.order
        return order[place] if place < len(order) else "nobody"

    @property
    def _is_full(self) -> bool:
        return len(self.account.order) >= MOST_ITEMS

    def _room_for(self, nbytes: int) -> str:
        return "overloaded" if self.ledger.held + nbytes > self.most else ""

    async def _talk(self, twice: bool) -> None:
        """Send speech with its final silence, or two turns at once."""
        account = self.account
        ms = 48 if account.format == "audio/pcm" else 8
        turn = np.random.default_rng(self.number).integers(1, 256, 200 * ms, np.uint8).tobytes()
        turn += SILENCE[account.format] * 600 * ms
        await self._append_data(turn * (2 if twice else 1))

    async def _pause(self, ms: int, goes_on: bool) -> None:
        """Send speech, a silence of ``ms`` for an early answer, and more."""
        await self._append("loud", 200)
        await self._append("quiet", 260)
        await asyncio.sleep(ms / 1000)
        await self._append("loud" if goes_on else "quiet", 300)

    async def _append(self, kind: str, ms: int) -> None:
        account = self.account
        size = ms * (48 if account.format == "audio/pcm" else 8)
        sound = np.random.default_rng(self.number).integers(1, 256, size, np.uint8).tobytes()
        silence = SILENCE[account.format] * size
        data = silence if kind == "quiet" else sound[: 7 if kind == "odd" else size]
        await self._append_data(data)

    async def _append_data(self, data: bytes) -> None:
        account, active = self.account, self.account.active
        wrong = {self._room_for(len(data))}
        if wrong == {""}:
            account.append(data)
            if account.detects:  # turns that end in it, two at most, the first of which may begin an answer
                is_nearly_full = len(account.order) >= MOST_ITEMS - 2
                wrong |= {"bad_request", "overloaded"} if is_nearly_full or self.most == FEW_BYTES else {""}
                wrong |= {"overloaded"} if len(account.answers) >= MAX_TURNS else {""}
        batch = await self._send("input_audio_buffer.append", "", wrong, audio=base64.b64encode(data).decode())
        detection = account.session["audio"]["input"]["turn_detection"]
        if any(each["type"].endswith("speech_started") for each in batch) and detection["interrupt_response"]:
            assert not active or active in account.finished, "speech did not interrupt the response"

    async def _commit(self) -> None:
        whole = len(self.account.held) // self.account.sample_bytes
        wrong: set[str] | str = "" if whole else "input_audio_buffer_commit_empty"
        if self._is_full:
            wrong = "bad_request" if whole else {"bad_request", "input_audio_buffer_commit_empty"}
        await self._send("input_audio_buffer.commit", "conversation.item.done", wrong)

    async def _clear(self) -> None:
        await self._send("input_audio_buffer.clear", "input_audio_buffer.cleared")

    async def _create(self, kind: int, id: str | None, place: int) -> None:
        item, before = {**ITEMS[kind], "id": id}, (None, "root", self._id(0), "nobody")[place % 4]
        audio = CLIP if SPOKEN in item.get("content", ()) else b""
        size = len(json.dumps(item)) if not audio else len(audio)
        wrong: set[str] | str = "not_found" if before == "nobody" else ""
        wrong = {"", "overloaded"} if not wrong and self._room_for(size) else wrong
        wrong = "bad_request" if self._is_full else wrong
        wrong = "conflict" if id in self.account.order else wrong
        batch = await self._send(
            "conversation.item.create", "conversation.item.done", wrong, item=item, previous_item_id=before
        )
        if audio and (done_events := [each for each in batch if each["type"] == "conversation.item.done"]):
            self.account.give_audio(done_events[0]["item"]["id"], audio)

    async def _retrieve(self, place: int) -> None:
        id = self._id(place)
        wrong = "item_retrieve_invalid_item_id" if id == "nobody" else ""
        await self._send("conversation.item.retrieve", "conversation.item.retrieved", wrong, item_id=id)

    async def _delete(self, place: int) -> None:
        id = self._id(place)
        wrong = (
            "item_delete_invalid_item_id" if id == "nobody" else "bad_request" if self.account.items[id].open else ""
        )
        await self._send("conversation.item.delete", "conversation.item.deleted", wrong, item_id=id)

    async def _truncate(self, place: int, index: int, ms: int) -> None:
        id = self._id(place)
        entry = self.account.items.get(id)
        wrong = "item_truncate_invalid_item_id"
        if entry is not None:
            length = len(entry.audio) // (48 if entry.format == "audio/pcm" else 8)
            fine = entry.speaks and not entry.open and not index and ms <= length
            wrong = "" if fine else "bad_request"
        where = {"item_id": id, "content_index": index, "audio_end_ms": ms}
        await self._send("conversation.item.truncate", "conversation.item.truncated", wrong, **where)

    async def _respond(self, kind: int) -> None:
        account, (options, wrong) = self.account, RESPONSES[kind]
        beside = bool(options) and options.get("conversation") == "none"
        empty = not account.order and not account.session["instructions"]
        if not wrong and empty and "input" not in (options or {}):
            wrong = "bad_request"
        if len(account.answers) >= MAX_TURNS:
            wrong = "overloaded"
        if not beside and account.active:
            wrong = "conversation_already_has_active_response"
        await self._send("response.create", "response.created", wrong, response=options)

    async def _cancel(self, target: str) -> None:
        account = self.account
        id = {"": None, "nobody": "nobody", "last": next(reversed(account.answers), "nobody")}[target]
        active_id = id if id in account.answers else account.active or next(iter(account.answers), "")
        wrong = "" if active_id and id != "nobody" else "response_cancel_not_active"
        await self._send("response.cancel", "response.done", wrong, response_id=id)
        assert wrong or active_id in account.finished

    async def _update(self, kind: int) -> None:
        change, account = UPDATES[kind], self.account
        voice = change.get("audio", {}).get("output", {}).get("voice", account.session["audio"]["output"]["voice"])
        is_fixed = account.has_spoken and voice != account.session["audio"]["output"]["voice"]
        session = {"type": "realtime", **change}
        await self._send("session.update", "session.updated", "bad_request" if is_fixed else "", session=session)

    async def _broken(self, kind: int) -> None:
        self.number += 1
        id, frame = f"mine_{self.number}", BROKEN[kind]
        read = id if "ID" in frame else None
        wrong = {"bad_request"}
        if "response.create" in frame and self.account.active:
            wrong |= {"conversation_already_has_active_response"}
        await self._send_frame(frame.replace("ID", id), read, "", wrong)

    async def _wait(self, steps: int) -> None:
        for _ in range(steps):
            if not self.account.answers:
                break
            await asyncio.sleep(0.001)

    async def _resume(self) -> None:
        """Kill the gateway after its posted events, and resume at another one."""
        while self.outbox.sent < self.account.count:
            await asyncio.sleep(0)
        await self._end("")
        known_session = await read_session(self.home.bus, self.token.id)
        restored_session = RestoredSession(known_session.entries[0])
        await restored_session.apply_entries(known_session.entries)
        assert len(restored_session.events) == self.account.count
        self._open(restored_session.config, SessionLog(self.home.bus, self.token.id, known_session), restored_session)
        await self.session.resume(restored_session, self.account.count)
        self._check_faults()
        rest, self.account.rest = self.account.rest, b""
        if rest:
            await self._append_data(rest)
