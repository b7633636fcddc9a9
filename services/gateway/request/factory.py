"""Requests begin here: each with a number of its own, and no more at once than the gateway may hold."""

from omnibus.errors import Overloaded
from services.gateway.request.names import app_letters
from services.gateway.request.request import ClientRequest
from services.gateway.request.resources import RequestResources


class RequestFactory(RequestResources):
    """Opens requests, which share its resources."""

    def open_request(self, app: str, model: str = "", *, seed: int | None = None, pinned: str = "") -> ClientRequest:
        """A new request to ``app``, for ``model`` when it is one model's. Raises ``Overloaded`` at the limit."""
        inflight = self.dispatcher.inflight_count + self.room.waiting
        if inflight >= self.settings.max_inflight:
            self.loads.count_limit_refusal(model)
            raise Overloaded(f"{inflight} requests are in flight here: try again later")
        return ClientRequest(self, app, model, next(self.numbers[app_letters(app)]), seed, pinned)
