"""Responses at one gateway: client operations, and the generation of those that it holds.

Questions to other gateways: whether they still generate a response.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Literal

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.errors import (
    BadRequest,
    CannotContinue,
    DeadlineExceeded,
    KeyRevoked,
    NotFound,
    OmnibusError,
    StageFailed,
    StoreUnavailable,
)
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus.store import Store, StoredResponse
from omnibus_gateway.openai.responses.conversations import ListItemsQuery
from omnibus_gateway.openai.responses.request import RESPONSE_ID, ResponseRequest
from omnibus_gateway.openai.responses.response import (
    ItemList,
    ResponseObject,
    decode_response,
    failed_response,
)
from omnibus_gateway.pricing.meter import NO_PRICES, PriceOptions
from omnibus_gateway.responses.archive import (
    ResponseArchive,
    read_items,
    response_of,
    with_progress,
    with_status,
)
from omnibus_gateway.responses.conversations import Conversations, EarlierItems, page_items
from omnibus_gateway.responses.log import LogContent, LogReader, read_log
from omnibus_gateway.responses.production import REVOKED, FollowedProduction, Production, ProductionSpec
from omnibus_gateway.responses.specs import ProductionSpecs
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tenancy.tenant import DeferredWork, acting_as, current_tenant

log = logging.getLogger(__name__)

#: Timeout of a gateway's answer, in seconds. After it, the gateway counts as failed.
_ANSWER_SECONDS = 2.0
#: Seconds before the retry for a gateway that a cluster of NATS servers may not know yet.
_CLUSTER_PAUSE_SECONDS = 0.5


class HolderQuestion(msgspec.Struct, frozen=True):
    """Question whether a gateway generates response ``id``. ``stop`` is the reason to end it, if any."""

    id: str
    stop: Literal["", "cancelled", "deleted"] = ""


class HolderAnswer(msgspec.Struct, frozen=True):
    held: bool


_encode = msgspec.json.Encoder().encode
_decode_question = msgspec.json.Decoder(HolderQuestion).decode
_decode_answer = msgspec.json.Decoder(HolderAnswer).decode


class Holders:
    """Sends questions to other gateways, and answers those to ``gateway`` with ``answer``."""

    def __init__(self, bus: Bus, gateway: str, answer: Callable[[HolderQuestion], bool]) -> None:
        self._bus = bus
        self._gateway = gateway
        self._answer = answer

    async def startup(self) -> None:
        await self._bus.add_responder(subjects.holder_subject(self._gateway), self._respond)

    async def _respond(self, delivery: Delivery) -> AsyncIterator[bytes]:
        try:
            question = _decode_question(delivery.data)
        except msgspec.MsgspecError as error:
            log.warning("cannot decode a question about a response: %s", error)
            return
        yield _encode(HolderAnswer(self._answer(question)))

    async def ask(self, holder: str, question: HolderQuestion) -> bool:
        """Ask gateway ``holder`` whether it generates the response. A missing gateway or a timeout is False.

        Raises ``BusUnavailable``.
        """
        if not holder:
            return False
        for last in (False, True):
            try:
                body = await self._bus.request(subjects.holder_subject(holder), _encode(question), _ANSWER_SECONDS)
                return _decode_answer(body).held
            except NotFound:
                if last or not self._bus.clustered:
                    return False
                await asyncio.sleep(_CLUSTER_PAUSE_SECONDS)
            except (DeadlineExceeded, msgspec.MsgspecError):
                return False
        return False


#: Limit of the starts of a background response. After them, the gateway assumes that the response crashes gateways.
MAX_ATTEMPTS = 5
#: Seconds between two searches for abandoned responses.
_ADOPTION_INTERVAL_SECONDS = 1.0
#: Limit of the background responses per search.
_MAX_LOOKED_AT = 1024
#: Timeout for the end of a response at another gateway, in seconds.
_END_WAIT_SECONDS = 5.0
_END_POLL_SECONDS = 0.05


class Responses:
    """Generates responses with ``chat``. Stored responses are in ``store``, their events on the ``bus``."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        bus: Bus,
        chat: Chat,
        gateway: str,
        deferred_work: DeferredWork | None = None,
    ) -> None:
        self._deferred = deferred_work or DeferredWork()
        self._settings = settings
        self._store = store
        self._bus = bus
        self._chat = chat
        self._gateway = gateway
        self._holders = Holders(bus, gateway, self._answer_question)
        self._made: dict[str, Production] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._adoption: asyncio.Task[None] | None = None
        self.conversations = Conversations(settings, store)
        self._archive = ResponseArchive(settings, store, bus, self.conversations, gateway)
        self.specs = ProductionSpecs(settings, store, bus, chat, self._archive, self._deferred.events)

    async def startup(self) -> None:
        """Answer questions of other gateways, and adopt abandoned responses."""
        await self._holders.startup()
        self._adoption = asyncio.get_running_loop().create_task(self._adopt_abandoned())

    async def leave_background(self) -> None:
        """Stop adopting responses, and leave background responses to other gateways."""
        if self._adoption is not None:
            await until_cancelled(self._adoption)
        await asyncio.gather(*(each.stop("stopping") for each in list(self._made.values()) if each.is_background))

    async def shutdown(self) -> None:
        """Stop all productions."""
        await self.leave_background()
        await asyncio.gather(*(each.stop("stopping") for each in list(self._made.values())))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_WAIT_SECONDS)

    # Clients

    async def create(
        self,
        request: ResponseRequest,
        body: bytes,
        pinned_path: str,
        prices: PriceOptions = NO_PRICES,
        before: EarlierItems | None = None,
    ) -> Production:
        """Start a response within ``prices``, after ``before`` or the request's history.

        Raises ``OmnibusError`` and ``QuoteReady``.
        """
        return self._start(await self.specs.open(request, body, pinned_path, prices, before))

    def metric_label(self, model: str) -> str:
        """Return the label of ``model`` in metrics, "" if it is unknown."""
        chats = self.specs.chats
        is_known = self._chat.has_model(model) or chats.is_served_by_app(model)
        return model if is_known else ""

    async def load_history(self, request: ResponseRequest) -> EarlierItems:
        """Return the items before those of ``request``. Raises ``BadRequest`` for unknown items and other tenants'."""
        return await self.specs.history.load(request)

    async def retrieve(self, id: str) -> ResponseObject:
        """Return the current state of a response. Raises ``NotFound``."""
        stored_response = await self._find(id)
        return await self._view(stored_response)

    async def follow(self, id: str, after: int) -> AsyncIterator[bytes]:
        """Yield the events of a response after number ``after`` as they arrive. Adopts an abandoned response.

        Raises ``NotFound``, ``BadRequest`` if it has no events, and ``ProtocolError`` if they have expired.
        """
        stored_response = await self._find(id)
        if not stored_response.record.logged:
            raise BadRequest("This response was created without stream: retrieve it without stream.", param="stream")
        reader, followed_production = LogReader(self._bus, id), FollowedProduction()
        try:
            async for events in reader.follow():
                if fresh := [event.frame for event in events if event.number > after]:
                    yield b"".join(fresh)
                if (not events and not reader.is_over) or (not followed_production.looked and not reader.is_over):
                    followed_production.looked = True
                    await self._take_up(id, followed_production)
        finally:
            followed_production.release()

    async def cancel(self, id: str) -> ResponseObject:
        """Cancel a background response. Raises ``NotFound``, and ``BadRequest`` for other responses."""
        stored_response = await self._find(id)
        if not stored_response.record.background:
            raise BadRequest("Only background responses can be cancelled.", param="response_id")
        if not stored_response.final:
            await self._stop(stored_response, "cancelled")
        return await self._view(await self._find(id))

    async def delete(self, id: str) -> None:
        """Delete a response, and stop it if it is in progress. Raises ``NotFound``."""
        stored_response = await self._find(id)
        if not stored_response.final:
            await self._stop(stored_response, "deleted")
        await self._store.drop_response(stored_response.record)

    async def list_input_items(self, id: str, query: ListItemsQuery) -> ItemList:
        """List the items of a response's own request. Raises ``NotFound``, also for an unknown ``after``."""
        stored_response = await self._find(id)
        items = {str(item.id): item for item in read_items(stored_response.record)}
        return page_items(items, query)

    async def _find(self, id: str) -> StoredResponse:
        stored_response = await self._store.response(id) if RESPONSE_ID.fullmatch(id) else None
        if stored_response is None or not current_tenant().owns(stored_response.record.tenant):
            raise NotFound(f"Response with id {id[:64]!r} not found.", param="response_id")
        return stored_response

    async def _view(self, stored_response: StoredResponse) -> ResponseObject:
        record = stored_response.record
        if stored_response.final:
            return decode_response(stored_response.final)
        response = response_of(record)
        if record.id in self._made or not record.logged:
            return with_progress(response, [])
        content = await read_log(self._bus, record.id)
        if content.is_over:  # its gateway failed before storing the end
            return await self._archive.heal(record, content)
        if record.deadline < time.time() and not await self._is_held(stored_response):
            return await self._end_abandoned(stored_response, content)
        return with_progress(response, content.events)

    # Making

    def _start(self, spec: ProductionSpec) -> Production:
        production, tenant = Production(spec, self._chat, self.specs.chats), current_tenant()
        self._made[spec.response.id] = production
        exit_stack = ExitStack()
        if production.is_background:  # other responses count as requests of their followers
            exit_stack.enter_context(self._deferred.counted(tenant))
        production.start()
        production.on_over(lambda over: self._on_over(over, exit_stack))
        exit_stack.enter_context(self._deferred.stopped_by(tenant, lambda: self._spawn(production.stop(REVOKED))))
        return production

    def _on_over(self, production: Production, exit_stack: ExitStack) -> None:
        exit_stack.close()
        self._made.pop(production.response.id, None)
        is_stored = production.spec.log is not None and not production.response.is_over
        if is_stored and production.stopped_for != "deleted":
            self._spawn(self._release(production.response.id))

    async def _release(self, id: str) -> None:
        """Release the response, so that another gateway may continue it."""
        try:
            await self._store.claim_response(id, "", self._gateway)
        except StoreUnavailable as error:  # other gateways will notice that this one does not hold it
            log.warning("%s: %s", id, error)

    async def _take_up(self, id: str, followed_production: "FollowedProduction") -> None:
        """Follow the production of a response, and adopt it if abandoned."""
        if id in self._made:
            followed_production.follow(self._made[id])
            return
        stored_response = await self._store.response(id)
        if stored_response is None:
            raise NotFound("the response was deleted", param="response_id")
        if stored_response.final:
            content = await read_log(self._bus, id)
            if not content.is_over:
                raise CannotContinue("the events of this response have expired: retrieve it without stream")
        elif (
            not await self._is_held(stored_response) and (production := await self._adopt(stored_response)) is not None
        ):
            followed_production.follow(production)

    async def _adopt(self, stored_response: StoredResponse) -> Production | None:
        """Continue an abandoned response. Returns None if another gateway was faster or it has ended."""
        record = stored_response.record
        attempt = await self._store.claim_response(record.id, self._gateway, stored_response.holder)
        if not attempt or record.id in self._made:
            return self._made.get(record.id)
        content = await read_log(self._bus, record.id)
        if content.is_over:
            await self._archive.heal(record, content)
            return None
        if record.background and attempt > MAX_ATTEMPTS:
            error = StageFailed(f"the response was started {MAX_ATTEMPTS} times, and each time its gateway failed")
            await self._archive.end_early(record, content, failed_response(response_of(record), error))
            return None
        if record.deadline < time.time():
            await self._archive.end_early(record, content, with_status(record, "cancelled"))
            return None
        try:
            tenant = self._deferred.find_tenant(record.tenant, record.weight, record.key)
        except KeyRevoked as error:
            await self._archive.end_early(record, content, failed_response(response_of(record), error))
            return None
        with acting_as(tenant):
            try:
                return self._start(await self.specs.resume(record, content))
            except OmnibusError as error:
                log.warning("cannot continue %s: %s", record.id, error)
                await self._release(record.id)
                raise

    async def _is_held(self, stored_response: StoredResponse) -> bool:
        if stored_response.holder == self._gateway:
            return stored_response.record.id in self._made
        return await self._holders.ask(stored_response.holder, HolderQuestion(stored_response.record.id))

    async def _adopt_abandoned(self) -> None:
        """Adopt abandoned background responses, forever."""
        while True:
            await asyncio.sleep(_ADOPTION_INTERVAL_SECONDS)
            try:
                for id, stored_response in (await self._store.open_responses(_MAX_LOOKED_AT)).items():
                    if id not in self._made and not await self._is_held(stored_response):
                        await self._adopt(stored_response)
            except OmnibusError as error:
                log.warning("cannot adopt background responses: %s", error)
            except Exception:  # an unreadable response must not stop the others
                log.exception("cannot adopt background responses")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Ends

    async def _stop(self, stored_response: StoredResponse, reason: Any) -> None:
        """End a response at the gateway that generates it."""
        id = stored_response.record.id
        if id in self._made:
            await self._made[id].stop(reason)
        elif await self._holders.ask(stored_response.holder, HolderQuestion(id, reason)):
            await self._wait_for_end(id, reason)
        elif reason == "cancelled" and await self._store.claim_response(id, self._gateway, stored_response.holder):
            content = await read_log(self._bus, id)
            await self._archive.end_early(
                stored_response.record, content, with_status(stored_response.record, "cancelled")
            )

    async def _wait_for_end(self, id: str, reason: str) -> None:
        give_up = time.monotonic() + _END_WAIT_SECONDS
        while reason == "cancelled" and time.monotonic() < give_up:
            stored_response = await self._store.response(id)
            if stored_response is None or stored_response.final:
                return
            await asyncio.sleep(_END_POLL_SECONDS)

    def _answer_question(self, question: HolderQuestion) -> bool:
        production = self._made.get(question.id)
        if production is not None and question.stop:
            self._spawn(production.stop(question.stop))
        return production is not None

    async def _end_abandoned(self, stored_response: StoredResponse, content: LogContent) -> ResponseObject:
        """End an abandoned response after its deadline."""
        if not await self._store.claim_response(stored_response.record.id, self._gateway, stored_response.holder):
            return with_progress(response_of(stored_response.record), content.events)
        return await self._archive.end_early(
            stored_response.record, content, with_status(stored_response.record, "cancelled")
        )
