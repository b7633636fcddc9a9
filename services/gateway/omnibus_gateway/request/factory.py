"""Factory of requests: numbers them, and limits the requests in flight."""

from omnibus.errors import Overloaded
from omnibus_gateway.request.names import app_letters
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.request.resources import RequestResources


class RequestFactory(RequestResources):
    """Opens requests, which share its resources."""

    def open_request(
        self, app: str, model: str = "", *, seed: int | None = None, pinned_path: str = ""
    ) -> ClientRequest:
        """Open a request to ``app``, for ``model`` if it is one model's. Raises ``Overloaded`` at the limit."""
        inflight = self.dispatcher.inflight_count + self.room.waiting
        if inflight >= self.settings.max_inflight:
            self.loads.count_limit_refusal(model)
            raise Overloaded(f"{inflight} requests are in flight here: try again later")
        return ClientRequest(self, app, model, next(self.numbers[app_letters(app)]), seed, pinned_path)
