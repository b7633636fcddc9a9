"""Resources that all requests of a gateway share."""

from collections import defaultdict
from itertools import count

from omnibus.settings import GatewaySettings
from omnibus.tensors.client import TensorClient
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.pricing.quotes import Quotes
from omnibus_gateway.request.load_report import LoadReporter
from omnibus_gateway.request.record import Records
from omnibus_gateway.request.waiting_room import WaitingRoom
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tenancy.admission import Admission

#: Part of the time until the deadline that a queue may take; more counts as an overload.
MAX_QUEUE_OVER_DEADLINE = 0.5


class RequestResources:
    """The parts of a gateway that every request shares. Media are stored if content is recorded."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        dispatcher: Dispatcher,
        tensors: TensorClient,
        records: Records,
        keep: MediaStore,
        loads: LoadReporter,
        admission: Admission | None = None,
    ) -> None:
        self.settings = settings
        self.router = router
        self.dispatcher = dispatcher
        self.tensors = tensors
        self.records = records
        self.quotes = Quotes(router, records.meter)
        self.kept = keep if records.rules.any_full else None
        self.loads = loads
        self.admission = admission
        #: Maximum queue time in seconds: less with short deadlines, which it would use up.
        self.queue_seconds = min(settings.queue_seconds, MAX_QUEUE_OVER_DEADLINE * settings.deadline)
        self.room = WaitingRoom(router)
        self.numbers: dict[str, count[int]] = defaultdict(count)  # by the letters in ids, which apps may share
