"""Any input to a route gets an answer or a 4xx. It never gets a 5xx, and leaks nothing."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.gateway.background import EMBEDDER, RERANKER, Running
from tests.unit.gateway.fuzz import JUNK, Schemas
from tests.unit.gateway.house import FILMER, OMNI, PAINTER, PNG, read_error_body
from tests.unit.gateway.samples import make_sample_sound

WAV = make_sample_sound("wav", "pcm_s16le", 0.2, 16000)
MODELS = st.sampled_from([OMNI, PAINTER, EMBEDDER, RERANKER, FILMER, "nobody"])
#: Values that are cheap to serve, and probably valid.
KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "model": MODELS,
    "voice": st.just("alloy"),
    "size": st.sampled_from(["64x48", "auto", "60x60", "99999x99999"]),
    "steps": st.integers(1, 9),
    "n": st.integers(1, 3),
    "stream": st.booleans(),
}
#: Component, and a request that is fine.
JSON_ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/chat/completions": ("ChatRequest", {"model": OMNI, "messages": [{"role": "user", "content": "hi"}]}),
    "/v1/responses": ("ResponseRequest", {"model": OMNI, "input": "hello there"}),
    "/v1/conversations": ("ConversationRequest", {"items": [{"role": "user", "content": "hello there"}]}),
    "/v1/completions": ("CompletionRequest", {"model": OMNI, "prompt": ["hello", "there"], "max_tokens": 3}),
    "/tokenize": ("TokenizeRequest", {"model": OMNI, "prompt": "hello there"}),
    "/detokenize": ("DetokenizeRequest", {"model": OMNI, "tokens": [1, 2]}),
    "/v1/images/generations": ("ImageRequest", {"model": PAINTER, "prompt": "a boat", "size": "64x48", "steps": 3}),
    "/v1/audio/speech": ("SpeechRequest", {"model": OMNI, "input": "hello there", "voice": "alloy"}),
    "/v1/embeddings": ("EmbeddingRequest", {"model": EMBEDDER, "input": ["hello", "there"]}),
    "/v1/rerank": ("RerankRequest", {"model": RERANKER, "query": "hello", "documents": ["hello", "there"]}),
    "/v1/videos": ("VideoRequest", {"model": FILMER, "prompt": "a boat", "size": "64x32", "seconds": "1"}),
}
FORM_ROUTES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "/v1/images/edits": ("EditForm", "image", {"model": PAINTER, "prompt": "bluer"}),
    "/v1/audio/transcriptions": ("TranscriptionForm", "file", {"model": OMNI}),
    "/v1/videos": ("VideoRequest", "input_reference", {"model": FILMER, "prompt": "a boat"}),
}
KINDS = ("files", "videos", "responses", "conversations")
EXAMPLES = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module")
def background_gateway(tmp_path_factory: pytest.TempPathFactory, valkey_url: str) -> Iterator[Running]:
    gateway = Running(tmp_path_factory.mktemp("fuzz"), valkey_url)
    yield gateway
    gateway.close()


@pytest.fixture(scope="module")
def schemas(background_gateway: Running) -> Schemas:
    document = background_gateway.do(background_gateway.home.http.get("/openapi.json")).json()
    return Schemas(document, KNOWN)


def check_response(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        read_error_body(response)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert '"server_error"' not in response.text, response.text


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_json_is_answered_or_refused(background_gateway: Running, schemas: Schemas, path: str):
    @EXAMPLES
    @given(schemas.body(*JSON_ROUTES[path]))
    def any_body(body: Any) -> None:
        check_response(
            background_gateway.do(background_gateway.home.http.post(path, content=json.dumps(body).encode()))
        )

    any_body()
    background_gateway.do(background_gateway.home.emptied())


@pytest.mark.parametrize("path", FORM_ROUTES)
def test_forms_are_answered_or_refused(background_gateway: Running, schemas: Schemas, path: str):
    component, name, fine = FORM_ROUTES[path]
    fitting = PNG if name == "image" else WAV
    files = st.just(fitting) | st.sampled_from([PNG, WAV, PNG[:30], WAV[:50]]) | st.binary(max_size=40)

    @EXAMPLES
    @given(schemas.body(component, fine), st.just([fitting]) | st.lists(files, max_size=2))
    def any_form(body: Any, contents: list[bytes]) -> None:
        fields = {key: _format_field(value) for key, value in body.items()} if isinstance(body, dict) else {}
        parts = [(name, ("file", each)) for each in contents]
        check_response(background_gateway.do(background_gateway.home.http.post(path, data=fields, files=parts or None)))

    any_form()
    background_gateway.do(background_gateway.home.emptied())


#: Routes that need no body: nothing is a conversation without items.
BODILESS = {"/v1/conversations"}


@pytest.mark.parametrize("path", [*sorted(JSON_ROUTES.keys() - BODILESS), *FORM_ROUTES, "/v1/images/variations"])
def test_bytes_are_refused(background_gateway: Running, path: str):
    kinds = st.sampled_from(
        ["multipart/form-data; boundary=x", "application/json", "", 'multipart/form-data; boundary="']
    )

    @EXAMPLES
    @given(st.binary(max_size=200) | JUNK.map(lambda value: json.dumps(value).encode()), kinds)
    def any_bytes(body: bytes, kind: str) -> None:
        payload = body if "multipart" not in kind else b"--x\r\n" + body + b"\r\n--x--"
        response = background_gateway.do(
            background_gateway.home.http.post(path, content=payload, headers={"content-type": kind})
        )
        check_response(response)
        assert response.status_code >= 400

    any_bytes()


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_ids_lead_nowhere_else(background_gateway: Running, method: str):
    characters = st.text(st.characters(codec="ascii", exclude_characters="/?#", exclude_categories=["Cc"]), min_size=1)

    @EXAMPLES
    @given(
        characters.filter(lambda id: id not in (".", ".."))
        | st.from_regex(r"[a-z]{1,8}[-_][0-9a-f]{48}", fullmatch=True)
    )
    def any_id(id: str) -> None:
        for path in (f"/v1/{kind}/{id}{end}" for kind in KINDS for end in ("", "/content")):
            response = background_gateway.do(background_gateway.home.http.request(method, path))
            assert 400 <= response.status_code < 500, response.text

    any_id()


def _format_field(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value) if not isinstance(value, bool) else str(value).lower()
