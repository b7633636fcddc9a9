"""The error tree: each error is data that survives the bus, with a stable code and an HTTP status."""

import msgspec
import pytest

from omnibus import errors
from omnibus.errors import Fatal, OmnibusError, Overloaded, ProblemDetails, Rejected, Retryable, from_problem


def list_errors(root: type[OmnibusError] = OmnibusError) -> list[type[OmnibusError]]:
    """Return ``root`` and all its subclasses in ``omnibus.errors``."""
    own_errors = [root] if root.__module__ == errors.__name__ else []
    return own_errors + [kind for child in root.__subclasses__() for kind in list_errors(child)]


#: The HTTP status that the drawn tree promises for each code.
STATUSES = {
    "rejected": 400,
    "bad_request": 400,
    "bad_media": 400,
    "context_length_exceeded": 400,
    "unauthorized": 401,
    "key_revoked": 401,
    "cost_limit_exceeded": 402,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "too_large": 413,
    "limit_reached": 413,
    "bad_input": 422,
    "head_too_large": 431,
    "request_timeout": 408,
    "client_closed": 499,
    "unavailable": 503,
    "overloaded": 429,
    "stage_unavailable": 503,
    "gateway_stopping": 503,
    "cannot_continue": 502,
    "arena_full": 503,
    "node_unreachable": 503,
    "bus_unavailable": 503,
    "store_unavailable": 503,
    "store_full": 503,
    "storage_full": 507,
    "hub_unavailable": 503,
    "internal_error": 500,
    "app_failed": 500,
    "no_sandbox": 501,
    "stage_failed": 502,
    "deadline_exceeded": 504,
    "sequence_gap": 502,
    "stale_handle": 502,
    "replay_mismatch": 500,
    "graph_error": 500,
    "placeholder_observed": 500,
    "side_effect": 500,
    "stream_consumed": 500,
    "protocol_error": 500,
}


def test_the_tree_has_the_codes_and_statuses_that_it_promises():
    assert {kind.code: kind.status for kind in list_errors()} == STATUSES


@pytest.mark.parametrize("kind", list_errors(), ids=lambda kind: kind.__name__)
def test_an_error_survives_the_bus(kind):
    error = kind("what happened; what to do", stage="vocoder", executor="v-0", param="messages[0]", attempt=2)

    body = msgspec.json.encode(error.to_problem())
    again = from_problem(msgspec.json.decode(body, type=ProblemDetails))

    assert type(again) is (OmnibusError if kind is Fatal else kind)  # both are `internal_error`
    assert again.to_problem() == error.to_problem()
    assert str(again) == "what happened; what to do"


def test_an_overload_keeps_its_wait():
    again = from_problem(Overloaded("full", retry_after=7.5).to_problem())

    assert isinstance(again, Overloaded)
    assert again.retry_after == 7.5


def test_an_overload_that_waiting_does_not_lift_stays_one():
    assert from_problem(ProblemDetails("overloaded", "delete some")).to_problem().retry_after == 0.0


def test_an_unknown_code_is_fatal_and_keeps_its_message():
    error = from_problem(ProblemDetails("from_the_future", "never heard of it", stage="thinker"))

    assert type(error) is Fatal
    assert (error.status, error.message, error.stage) == (500, "never heard of it", "thinker")


def test_a_problem_says_only_what_is_known():
    assert msgspec.json.encode(Fatal("broken").to_problem()) == b'{"code":"internal_error","message":"broken"}'


def test_a_problem_with_unknown_fields_is_refused():
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"code":"x","message":"y","trace":"secret"}', type=ProblemDetails)


@pytest.mark.parametrize("kind", list_errors(), ids=lambda kind: kind.__name__)
def test_clients_are_blamed_for_4xx_alone(kind):
    assert issubclass(kind, Rejected) == (kind.status < 500 and not issubclass(kind, Retryable))
