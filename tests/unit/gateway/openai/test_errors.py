"""Conversion of errors to status, headers and OpenAI's error body."""

import json

import pytest

from omnibus import errors
from omnibus_gateway.openai.errors import error_body, error_headers, status_of

CASES = [
    (errors.BadRequest("m", param="messages[0]"), 400, "invalid_request_error", "bad_request"),
    (errors.BadMedia("m"), 400, "invalid_request_error", "bad_media"),
    (errors.ContextTooLong("m"), 400, "invalid_request_error", "context_length_exceeded"),
    (errors.Unauthorized("m"), 401, "authentication_error", "unauthorized"),
    (errors.NotFound("m"), 404, "invalid_request_error", "not_found"),
    (errors.TooLarge("m"), 413, "invalid_request_error", "too_large"),
    (errors.Overloaded("m", retry_after=0.2), 429, "rate_limit_error", "overloaded"),
    (errors.StageUnavailable("m", stage="vocoder"), 503, "server_error", "stage_unavailable"),
    (errors.StageFailed("m", stage="llm", executor="ex-1", attempt=2), 502, "server_error", "stage_failed"),
    (errors.DeadlineExceeded("m"), 504, "server_error", "deadline_exceeded"),
]


@pytest.mark.parametrize(("error", "status", "kind", "code"), CASES)
def test_an_error_and_its_problem_have_the_same_status_and_body(
    error: errors.OmnibusError, status: int, kind: str, code: str
) -> None:
    body = json.loads(error_body(error, "req-1"))["error"]

    assert status_of(error) == status_of(error.to_problem()) == status
    assert error_body(error, "req-1") == error_body(error.to_problem(), "req-1")
    assert {"message", "type", "param", "code", "request_id", "stage"} <= set(body)
    assert (body["message"], body["type"], body["code"], body["request_id"]) == ("m", kind, code, "req-1")
    assert body["param"] == (error.param or None)
    assert body["stage"] == (error.stage or None)


def test_a_failing_executor_and_attempt_are_named() -> None:
    body = json.loads(error_body(errors.StageFailed("m", stage="llm", executor="ex-1", attempt=2)))["error"]

    assert (body["stage"], body["executor"], body["attempt"], body["request_id"]) == ("llm", "ex-1", 2, None)


@pytest.mark.parametrize(
    ("seconds", "header", "retried"),
    [
        (0.2, "1", True),
        (1.0, "1", True),
        (1.2, "2", True),
        (30.0, "30", True),
        (90.0, "60", True),
        (121.0, "60", False),
    ],
)
def test_overload_states_a_wait_that_clients_obey_or_rules_a_retry_out(
    seconds: float, header: str, retried: bool
) -> None:
    error = errors.Overloaded("m", retry_after=seconds)

    headers = error_headers(error)

    assert headers == error_headers(error.to_problem())
    assert headers == {"x-should-retry": str(retried).lower(), "Retry-After": header}


def test_a_limit_that_waiting_does_not_lift_rules_a_retry_out() -> None:
    error = errors.Overloaded("delete some", retry_after=0)

    assert error_headers(error) == error_headers(error.to_problem()) == {"x-should-retry": "false"}


@pytest.mark.parametrize(
    ("kind", "should_retry"),
    [
        (errors.BadRequest, "false"), (errors.TooSlow, "true"), (errors.Conflict, "false"),
        (errors.StageUnavailable, "true"), (errors.StorageFull, "false"), (errors.StageFailed, "true"),
        (errors.DeadlineExceeded, "false"), (errors.AppFailed, "false"), (errors.ProtocolError, "false"),
    ],
)  # fmt: skip
def test_each_error_rules_a_retry_in_or_out(kind: type[errors.OmnibusError], should_retry: str) -> None:
    assert error_headers(kind("m")) == error_headers(kind("m").to_problem()) == {"x-should-retry": should_retry}


def test_a_missing_key_names_the_scheme() -> None:
    assert error_headers(errors.Unauthorized("m")) == {"x-should-retry": "false", "WWW-Authenticate": "Bearer"}


def test_an_unknown_code_is_a_server_error() -> None:
    problem = errors.ProblemDetails(code="from_the_future", message="m")

    assert status_of(problem) == 500
    assert json.loads(error_body(problem))["error"]["code"] == "from_the_future"
