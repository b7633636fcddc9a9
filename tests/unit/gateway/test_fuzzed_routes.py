"""Whatever a client sends to a route, it is an answer or a client's error: never ours, and nothing is left behind."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnibus import catalog
from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.unit.gateway.fuzz import JUNK, Schemas
from tests.unit.gateway.house import FILMER, OMNI, PAINTER, PNG, House, error, house
from tests.unit.gateway.samples import sound

T = TypeVar("T")

EMBEDDER = "toy-embedder"
WAV = sound("wav", "pcm_s16le", 0.2, 16000)
MODELS = st.sampled_from([OMNI, PAINTER, EMBEDDER, FILMER, "nobody"])
#: What is likely to be served, and cheap.
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
    "/v1/images/generations": ("ImageRequest", {"model": PAINTER, "prompt": "a boat", "size": "64x48", "steps": 3}),
    "/v1/audio/speech": ("SpeechRequest", {"model": OMNI, "input": "hello there", "voice": "alloy"}),
    "/v1/embeddings": ("EmbeddingRequest", {"model": EMBEDDER, "input": ["hello", "there"]}),
    "/v1/videos": ("VideoRequest", {"model": FILMER, "prompt": "a boat", "size": "64x32", "seconds": "1"}),
}
FORM_ROUTES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "/v1/images/edits": ("EditForm", "image", {"model": PAINTER, "prompt": "bluer"}),
    "/v1/audio/transcriptions": ("TranscriptionForm", "file", {"model": OMNI}),
    "/v1/videos": ("VideoRequest", "input_reference", {"model": FILMER, "prompt": "a boat"}),
}
EXAMPLES = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Running:
    """A house on an event loop of its own, so that examples can be sent to it one after another."""

    def __init__(self, directory: Path, store_url: str) -> None:
        self._store_url = store_url
        self._loop = asyncio.new_event_loop()
        self._ready: Future[House] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(directory,))
        self._thread.start()
        self.home = self._ready.result(30)

    def _run(self, directory: Path) -> None:
        self._loop.run_until_complete(self._live(directory))
        self._loop.close()

    async def _live(self, directory: Path) -> None:
        store = Store(StoreSettings(url=self._store_url))
        try:
            async with house(directory, store, videos_open=9) as home:
                await home.all_of(OMNI)
                await home.all_of(PAINTER)
                await home.executor(EMBEDDER, "B", "embedder")
                home.serve(OMNI, PAINTER, FILMER, **{EMBEDDER: catalog.embedding("qwen2", "")})
                self._ready.set_result(home)
                await self._stop.wait()
        except BaseException as fault:
            if not self._ready.done():
                self._ready.set_exception(fault)
            raise
        finally:
            await store.close()

    def do(self, work: Awaitable[T]) -> T:
        async def whole() -> T:
            async with asyncio.timeout(20):
                return await work

        return asyncio.run_coroutine_threadsafe(whole(), self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, valkey_url: str) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("fuzz"), valkey_url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def schemas(running: Running) -> Schemas:
    document = running.do(running.home.http.get("/openapi.json")).json()
    return Schemas(document, KNOWN)


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        error(response)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert '"server_error"' not in response.text, response.text


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_json_is_answered_or_refused(running: Running, schemas: Schemas, path: str):
    @EXAMPLES
    @given(schemas.body(*JSON_ROUTES[path]))
    def any_body(body: Any) -> None:
        check(running.do(running.home.http.post(path, content=json.dumps(body).encode())))

    any_body()
    running.do(running.home.emptied())


@pytest.mark.parametrize("path", FORM_ROUTES)
def test_forms_are_answered_or_refused(running: Running, schemas: Schemas, path: str):
    component, name, fine = FORM_ROUTES[path]
    fitting = PNG if name == "image" else WAV
    files = st.just(fitting) | st.sampled_from([PNG, WAV, PNG[:30], WAV[:50]]) | st.binary(max_size=40)

    @EXAMPLES
    @given(schemas.body(component, fine), st.just([fitting]) | st.lists(files, max_size=2))
    def any_form(body: Any, given: list[bytes]) -> None:
        fields = {key: _field(value) for key, value in body.items()} if isinstance(body, dict) else {}
        parts = [(name, ("file", each)) for each in given]
        check(running.do(running.home.http.post(path, data=fields, files=parts or None)))

    any_form()
    running.do(running.home.emptied())


@pytest.mark.parametrize("path", [*JSON_ROUTES, *FORM_ROUTES, "/v1/images/variations"])
def test_bytes_are_refused(running: Running, path: str):
    kinds = st.sampled_from(
        ["multipart/form-data; boundary=x", "application/json", "", 'multipart/form-data; boundary="']
    )

    @EXAMPLES
    @given(st.binary(max_size=200) | JUNK.map(lambda value: json.dumps(value).encode()), kinds)
    def any_bytes(body: bytes, kind: str) -> None:
        wrapped = body if "multipart" not in kind else b"--x\r\n" + body + b"\r\n--x--"
        response = running.do(running.home.http.post(path, content=wrapped, headers={"content-type": kind}))
        check(response)
        assert response.status_code >= 400

    any_bytes()


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_ids_lead_nowhere_else(running: Running, method: str):
    characters = st.text(st.characters(codec="ascii", exclude_characters="/?#", exclude_categories=["Cc"]), min_size=1)

    @EXAMPLES
    @given(characters | st.from_regex(r"[a-z]{1,8}[-_][0-9a-f]{48}", fullmatch=True))
    def any_id(id: str) -> None:
        for path in (f"/v1/{kind}/{id}{end}" for kind in ("files", "videos") for end in ("", "/content")):
            response = running.do(running.home.http.request(method, path))
            assert 400 <= response.status_code < 500, response.text

    any_id()


def _field(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value) if not isinstance(value, bool) else str(value).lower()
