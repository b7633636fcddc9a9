"""Requests by schemathesis get documented answers or rejections, never a 5xx."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from omnibus_gateway.anthropic.openapi import message_paths
from omnibus_gateway.openai.openapi import openapi_paths
from tests.e2e.routes.narrowed import narrow_document, register_formats
from tests.e2e.system import OMNI, System

pytestmark = pytest.mark.e2e

METHODS = ("get", "post", "put", "delete", "patch")
#: Those of clients; the rest is an operator's.
OPERATIONS = [
    f"{method.upper()} {path}"
    for path, item in (openapi_paths() | message_paths()).items()
    for method in METHODS
    if method in item
] + [
    "GET /v1/models",
    "GET /v1/models/{model}",
    "GET /v1/apps",
    "GET /v1/apps/{name}",
    "GET /v1/tasks",
    "POST /v1/apps",
]
SHAPE = response_schema_conformance
#: Operations of which every request is allowed: they have no body, and an id may be any text.
BODILESS = [
    "POST /v1/responses/{response_id}/cancel",
    "POST /v1/batches/{batch_id}/cancel",
    "POST /v1/uploads/{upload_id}/cancel",
]
#: A refusal that schemathesis does not count as one.
TOO_LARGE = 413
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, SHAPE]


@pytest.fixture(scope="module")
def document(system: System) -> dict[str, Any]:
    register_formats()
    return httpx.get(f"{system.url}/openapi.json", timeout=30).json()


@pytest.fixture(scope="module")
def narrow_schema(system: System, document: dict[str, Any]) -> Any:
    body = {"model": OMNI, "prompt": "hello", "max_tokens": 1}
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body})
    upload = httpx.post(f"{system.url}/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", line)})
    return schemathesis.openapi.from_dict(narrow_document(document, upload.json()["id"]))


@pytest.fixture(scope="module")
def full_schema(document: dict[str, Any]) -> Any:
    return schemathesis.openapi.from_dict(document)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(system: System) -> Iterator[None]:
    """Remove videos that no test waits for."""
    yield
    with httpx.Client(base_url=system.url, timeout=30) as http:
        while videos := http.get("/v1/videos", params={"limit": 100}).json()["data"]:
            for video in videos:
                http.delete(f"/v1/videos/{video['id']}")


def limit_examples(count: int) -> Callable[[Any], Any]:
    """Always the same ones."""
    limits = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(0)(limits(test))


def find_operation(schema: Any, label: str) -> Any:
    return next(result.ok() for result in schema.get_all_operations() if result.ok().label == label)


def send_case(system: System, case: Any, checks: list[Any]) -> tuple[int, str]:
    """Return the status, and the message of an error."""
    response = case.call(base_url=system.url, timeout=60)
    streams = response.headers["content-type"][0].startswith("text/event-stream")
    # A document of this version describes the data of one event, not a body of events.
    left_out = {SHAPE} if streams else {negative_data_rejection} if response.status_code == TOO_LARGE else set()
    case.validate_response(response, checks=[each for each in checks if each not in left_out])
    if streams:
        assert b'"server_error"' not in response.content, response.content
    return response.status_code, response.json()["error"]["message"] if response.status_code >= 400 else ""


@pytest.mark.parametrize("label", OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says(system: System, narrow_schema: Any, label: str):
    statuses: Counter[tuple[int, str]] = Counter()

    @limit_examples(30)
    @given(find_operation(narrow_schema, label).as_strategy(generation_mode=GenerationMode.POSITIVE))
    def any_request(case: Any) -> None:
        statuses[send_case(system, case, CHECKS)] += 1

    any_request()

    assert max(statuses)[0] < 500
    if label.startswith("POST") and "apps" not in label and "{" not in label:  # an id cannot be guessed
        assert statuses[200, ""], statuses  # a narrowed request that nothing serves would show nothing


@pytest.mark.parametrize(
    "label",
    [
        label
        for label in OPERATIONS
        if (label.startswith("POST") and label not in BODILESS) or label == "GET /v1/videos"
    ],
)
def test_what_the_document_forbids_is_refused(system: System, full_schema: Any, label: str):
    @limit_examples(10)
    @given(find_operation(full_schema, label).as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def any_request(case: Any) -> None:
        assert 400 <= send_case(system, case, [*CHECKS, negative_data_rejection])[0] < 500

    any_request()
