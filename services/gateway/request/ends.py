"""Errors of requests that are over before they are answered."""

from omnibus.errors import DeadlineExceeded, Fatal, OmnibusError
from services.gateway.dispatch.inflight import InflightInvocation


def app_deadline_error(app: str) -> DeadlineExceeded:
    """The error of an app that has not answered by the deadline."""
    return DeadlineExceeded(f"the app {app} did not answer within its deadline", stage=app)


def deadline_error(app: str, model: str) -> DeadlineExceeded:
    """The error of a request to ``model``, or to ``app`` where that is empty, that is not done by its deadline."""
    return DeadlineExceeded("the request took longer than its deadline") if model else app_deadline_error(app)


def request_over_error() -> Fatal:
    """The error of whoever still waits for a request that has ended."""
    return Fatal("the request is over: nothing of it runs any more")


def fail_open_streams(running: InflightInvocation, failure: OmnibusError | None = None) -> None:
    """Have whoever still reads a result of ``running``, which is over, get its ``failure``, or that it is over."""
    for stream in running.streams.values():
        if not stream.ended:
            stream.fail(failure or request_over_error())
