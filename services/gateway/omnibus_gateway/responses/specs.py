"""Specs of responses, from new requests and from stored ones."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from omnibus.bus import Bus
from omnibus.errors import Rejected, TooLarge
from omnibus.settings import GatewaySettings
from omnibus.store import ResponseRecord, Store
from omnibus_gateway.core import ClientRequest
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.responses import items as wire_items
from omnibus_gateway.openai.responses.request import ResponseRequest, parse_response_request
from omnibus_gateway.openai.responses.response import ResponseObject, new_response
from omnibus_gateway.openai.responses.to_chat import ChatOfResponse, to_chat
from omnibus_gateway.pricing.meter import NO_PRICES, PriceOptions
from omnibus_gateway.pricing.quotes import ImageAllowance
from omnibus_gateway.responses.archive import MAX_STORED_BYTES, ResponseArchive
from omnibus_gateway.responses.conversations import EarlierItems, HistoryReader, resolve_references
from omnibus_gateway.responses.drawing import ImageDrawer, ImageDrawers
from omnibus_gateway.responses.log import LogContent, ResponseLog
from omnibus_gateway.responses.production import ProductionSpec
from omnibus_gateway.tasks.chat import Chat, Chats
from omnibus_gateway.tenancy.tenant import LogBudget, current_tenant


class _ReadRequest(NamedTuple):
    """A request with its items, its chat and its image generator."""

    items: list[wire_items.InputItem]
    asked: ChatOfResponse
    drawer: ImageDrawer | None


class ProductionSpecs:
    """Builds the specs of responses that ``chat`` generates and ``archive`` stores."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        bus: Bus,
        chat: Chat,
        archive: ResponseArchive,
        events: LogBudget,
    ) -> None:
        self._log_budget = events
        self._settings = settings
        self._bus = bus
        self._chat = chat
        self._archive = archive
        self.history = HistoryReader(store, settings.history_bytes)
        #: Includes the chats of apps, once there are any.
        self.chats: Chats = chat
        #: Chooses the image models of responses, if there are any.
        self.drawers: ImageDrawers | None = None

    async def open(
        self,
        response_request: ResponseRequest,
        body: bytes,
        pinned_path: str,
        prices: PriceOptions = NO_PRICES,
        before: EarlierItems | None = None,
    ) -> ProductionSpec:
        """Return the spec of a new response within ``prices``.

        ``before`` has the items before the request, if the caller already read them.

        Raises ``OmnibusError`` and ``QuoteReady``.
        """
        if before is None:
            before = await self.history.load(response_request)
        items, response_chat, drawer = self._read_request(response_request, before)
        seed = response_chat.request.seed

        def opened() -> ClientRequest:
            return self._open_request(response_request.model, seed, pinned_path, drawer)

        run = opened()
        seed = run.seed
        try:
            if drawer is not None:
                pinned_path = run.pinned = await drawer.choose_path(self._chat, run, response_chat.request, prices)
            else:
                pinned_path = run.pinned = await self._chat.choose_path(run, response_chat.request, prices)
        except Rejected as error:
            error.param = response_chat.client_param(error.param)
            raise
        run.price = None  # checked once for all attempts
        usual = self._chat.usual_sampling(response_request.model).values if run.model else {}
        response = new_response(new_secret_id("resp_"), run.created, response_request, usual)
        encrypts = response_request.wants_encrypted_reasoning
        spec = ProductionSpec(response, response_chat, _first(run, opened), encrypts=encrypts, drawer=drawer)
        if not response_request.is_stored:
            return spec
        if len(body) > MAX_STORED_BYTES:
            raise TooLarge(
                f"A stored request must have at most {MAX_STORED_BYTES} bytes: send store false, "
                "or URLs instead of data."
            )
        return await self._stored_spec(spec, self._new_record(response_request, response, run, body, items, drawer))

    async def resume(self, record: ResponseRecord, content: LogContent) -> ProductionSpec:
        """Return the spec of a stored response with the log ``content``."""
        response_request = parse_response_request(record.request)
        _, response_chat, drawer = self._read_request(response_request, await self.history.load_of_record(record))
        if drawer is not None and record.images >= 0:
            drawer.limit_images(ImageAllowance(record.images, record.image_path))
        return ProductionSpec(
            new_response(record.id, record.created, response_request),
            response_chat,
            lambda: self._open_request(record.model, record.seed, record.path, drawer),
            deadline=record.deadline,
            encrypts=response_request.wants_encrypted_reasoning,
            log=self._open_log(record, content),
            known=content,
            ended=partial(self._archive.put_end, record),
            drawer=drawer,
        )

    def _read_request(self, response_request: ResponseRequest, before: EarlierItems) -> _ReadRequest:
        items = resolve_references(response_request.items, before.items)
        response_chat = to_chat(response_request, before.items, items, before.param)
        return _ReadRequest(
            items, response_chat, self.drawers.choose(response_request) if self.drawers is not None else None
        )

    def _open_request(self, model: str, seed: int | None, path: str, drawer: ImageDrawer | None) -> ClientRequest:
        if drawer is not None and drawer.alone:
            return drawer.open_request(seed, path)
        return self.chats.open_request(model, seed, path)

    def _new_record(
        self,
        response_request: ResponseRequest,
        response: ResponseObject,
        run: ClientRequest,
        body: bytes,
        items: list[wire_items.InputItem],
        drawer: ImageDrawer | None,
    ) -> ResponseRecord:
        background, tenant = bool(response_request.background), current_tenant()
        allowance = drawer.allowed if drawer is not None else None
        return ResponseRecord(
            id=response.id,
            model=response_request.model,
            created=run.created,
            deadline=run.created + self._settings.response_deadline if background else run.deadline,
            seed=run.seed,
            request=body,
            input=wire_items.encode_items(wire_items.with_ids(items, new_secret_id)),
            path=run.pinned,
            tenant=tenant.name,
            weight=tenant.weight,
            key=tenant.key.sha256 if tenant.key is not None else "",
            previous=response_request.previous_response_id or "",
            conversation=response_request.conversation_id,
            background=background,
            logged=background or bool(response_request.stream),
            images=-1 if allowance is None else allowance.most,
            image_path="" if allowance is None else allowance.path,
        )

    async def _stored_spec(self, spec: ProductionSpec, record: ResponseRecord) -> ProductionSpec:
        """Add the storage to ``spec``. A background response is stored at once."""
        if record.logged:
            self._log_budget.check_room(record.tenant)
        if record.background:
            await self._archive.put_begun(record)
        return spec._replace(
            deadline=record.deadline if record.background else 0.0,
            log=self._open_log(record) if record.logged else None,
            begun=partial(self._archive.put_begun, record) if record.logged and not record.background else None,
            ended=partial(self._archive.put_end if record.logged else self._archive.put_whole, record),
        )

    def _open_log(self, record: ResponseRecord, content: LogContent | None = None) -> ResponseLog:
        return ResponseLog(self._bus, record.id, content, partial(self._log_budget.count, record.tenant))


def _first(run: ClientRequest, open_next: Callable[[], ClientRequest]) -> Callable[[], ClientRequest]:
    """Return ``open_next`` with ``run`` as its first request."""
    waiting = [run]
    return lambda: waiting.pop() if waiting else open_next()
