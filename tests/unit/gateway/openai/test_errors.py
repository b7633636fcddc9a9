"""Errors become status, headers and OpenAI's error body."""

import json

import pytest

from omnibus import errors
from services.gateway.openai.errors import error_body, error_headers, status_of

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


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (1.0, "1"), (1.2, "2"), (30.0, "30")])
def test_overload_says_when_to_come_back_in_whole_seconds(seconds: float, header: str) -> None:
    error = errors.Overloaded("m", retry_after=seconds)

    assert error_headers(error) == error_headers(error.to_problem()) == {"Retry-After": header}


def test_other_errors_have_only_the_headers_they_need() -> None:
    assert error_headers(errors.BadRequest("m")) == {}
    assert error_headers(errors.Unauthorized("m")) == {"WWW-Authenticate": "Bearer"}


def test_an_unknown_code_is_a_server_error() -> None:
    problem = errors.ProblemDetails(code="from_the_future", message="m")

    assert status_of(problem) == 500
    assert json.loads(error_body(problem))["error"]["code"] == "from_the_future"
