"""Errors of requests that end before they are answered."""

from omnibus.errors import DeadlineExceeded, Fatal, OmnibusError
from omnibus_gateway.dispatch.inflight import InflightInvocation


def app_deadline_error(app: str) -> DeadlineExceeded:
    """Return the error of an app that missed its deadline."""
    return DeadlineExceeded(f"the app {app} did not answer within its deadline", stage=app)


def deadline_error(app: str, model: str) -> DeadlineExceeded:
    """Return the deadline error of a request to ``model``; to ``app`` if that is empty."""
    return DeadlineExceeded("the request took longer than its deadline") if model else app_deadline_error(app)


def request_over_error() -> Fatal:
    """Return the error for readers of a request that has ended."""
    return Fatal("the request is over: nothing of it runs any more")


def fail_open_streams(running: InflightInvocation, failure: OmnibusError | None = None) -> None:
    """Fail the open streams of ``running`` with ``failure``, or a generic error."""
    for stream in running.streams.values():
        if not stream.ended:
            stream.fail(failure or request_over_error())
