"""The core, as surfaces see it: the life of one request, from its admission to its record.

A surface opens a request with ``RequestFactory.open_request``, and does all work for it inside
``ClientRequest.until_end``. There a task submits its graph (``ClientRequest.submit``): the request waits for
admission, and is routed, recorded and sent. ``open_answer`` and ``read_outputs`` collect the answer while it streams to
the client. Every exit ends the request exactly once, as done, cancelled, expired or failed. The end stops its
executors, and is recorded and charged to its tenant.

``make lint`` rejects a surface that imports ``request``, ``dispatch`` or ``routing``. If one of these names lacks
something, give it a method rather than adding a name.
"""

from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.streams import ItemStream
from omnibus_gateway.request.accumulator import AnswerAccumulator, TokenIds
from omnibus_gateway.request.continuing import ResumableStream
from omnibus_gateway.request.record import AppCallLog, Records
from omnibus_gateway.request.request import ClientRequest, RequestFactory
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.router import Router

#: At most 12 names (``tests/contract/test_gateway_core.py``).
__all__ = [
    "AnswerAccumulator",
    "AppCallLog",
    "ClientRequest",
    "ExecutorEntry",
    "ExecutorTable",
    "InflightInvocation",
    "ItemStream",
    "Records",
    "RequestFactory",
    "ResumableStream",
    "Router",
    "TokenIds",
]
