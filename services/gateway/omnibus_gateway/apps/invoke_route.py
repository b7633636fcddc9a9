"""``POST /v1/apps/{name}/invoke`` as plain ASGI: JSON in, JSON or server-sent events out.

Apps with a ``ChatInput`` get OpenAI chat requests, with images and audio.

The first part of a stream decides its status: if an app fails before it, the client gets a plain error response. If it
fails later, the stream ends with an error frame instead of ``[DONE]``.
"""

from starlette.types import Receive, Scope, Send

from omnibus.errors import BadRequest
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus_gateway.apps.chat import AppChats, parse_app_chat
from omnibus_gateway.apps.served_apps import Registry
from omnibus_gateway.http.exchange import ConnectedClient, PostRequest, RequestOutcome, read_request
from omnibus_gateway.http.response import JSON, ResponseWriter, as_events
from omnibus_gateway.openai.parse import check_values
from omnibus_gateway.pricing.headers import refuse_price_options
from omnibus_gateway.request.request import RequestFactory, run_to_end

_BEFORE, _AFTER = "/v1/apps/", "/invoke"
_DONE = b"data: [DONE]\n\n"


def called_app(scope: Scope) -> str:
    """Return the app that a request invokes; empty for any other request."""
    path: str = scope["path"]
    if scope["method"] != "POST" or not path.startswith(_BEFORE) or not path.endswith(_AFTER):
        return ""
    name = path[len(_BEFORE) : -len(_AFTER)]
    return "" if "/" in name else name


class InvokeRoute:
    """Invokes apps for clients."""

    def __init__(self, settings: GatewaySettings, runs: RequestFactory, registry: Registry, chats: AppChats) -> None:
        self._settings = settings
        self._runs = runs
        self._registry = registry
        self._chats = chats

    async def __call__(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to app ``name``. When the client disconnects, its work is cancelled."""
        sending = ResponseWriter(send)
        async with RequestOutcome(sending) as outcome:
            self._registry.worker(name)  # an unknown app is rejected before the body is read
            post = await read_request(scope, receive, self._settings.max_body)
            refuse_price_options(post.headers)
            check_values(post.body)
            async with ConnectedClient(scope, receive):
                await self._send_answer(name, post, sending)
        # An app that is now gone counts under the empty name: clients can send any name.
        GATEWAY.app_counter(name if self._registry.worker_view(name) is not None else "", outcome.code).inc()

    async def _send_answer(self, name: str, post: PostRequest, sending: ResponseWriter) -> None:
        record, _ = self._registry.worker(name)
        if not record.invocable:
            raise BadRequest(f"the app {name} has no `serve`: call its model {record.model}", param="name")
        chat = parse_app_chat(record, post.body) if record.chat else None
        run = self._runs.open_request(name, seed=chat.seed if chat is not None else None, pinned_path=post.pinned)
        sending.run = run
        async with run_to_end(run):
            if chat is None:
                record, worker = await self._registry.warm_worker(name, run.deadline)
                call = worker.invoke(run, post.body)
            else:
                call = await self._chats.invoke_app(run, chat)
            run.call = call.log
            if record.streams:
                await sending.send_stream(as_events(call.read_parts()), last=_DONE)
                return
            answer = await call.read_answer()
        await sending.send_body(JSON, answer)
