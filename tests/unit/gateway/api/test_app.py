"""The HTTP routes around chat: models, health, readiness, version, metrics, errors, documentation."""

import json

import pytest

from omnibus import __version__
from tests.unit.gateway.house import OMNI, VL, ToyGateway, read_error_body
from tests.unit.sidecar.node import wait_until


async def test_models_are_those_of_the_plan(home: ToyGateway):
    assert (await home.http.get("/v1/models")).json() == {"object": "list", "data": []}

    home.serve(VL, OMNI)

    listing = (await home.http.get("/v1/models")).json()
    about = {"object": "model", "created": 1000, "owned_by": "omnibus"}
    assert listing["object"] == "list"
    assert [each["id"] for each in listing["data"]] == [VL, OMNI]
    assert all(each.items() >= about.items() for each in listing["data"])


async def test_one_model_is_shown_by_its_name(home: ToyGateway):
    home.serve(VL)

    model = (await home.http.get(f"/v1/models/{VL}")).json()
    missing = await home.http.get("/v1/models/some/where%2Felse")

    assert model.items() >= {"object": "model", "id": VL, "created": 1000, "owned_by": "omnibus"}.items()
    assert missing.status_code == 404
    assert (read_error_body(missing)["param"], read_error_body(missing)["code"]) == ("model", "not_found")
    assert "some/where/else" in read_error_body(missing)["message"]


async def test_health_is_about_the_process_alone(home: ToyGateway):
    for path in ("/health", "/healthz", "/livez", "/ping"):
        assert (await home.http.get(path)).json() == {"status": "ok"}


async def test_the_version_comes_with_the_epoch(home: ToyGateway):
    assert (await home.http.get("/version")).json() == {"version": __version__, "epoch": 0}

    home.serve(VL)
    home.serve(VL)

    assert (await home.http.get("/version")).json()["epoch"] == 2


# Ready


async def read_readiness(home: ToyGateway) -> tuple[int, dict]:
    response = await home.http.get("/readyz")
    assert response.json()["ready"] is (response.status_code == 200)
    return response.status_code, response.json()


async def test_without_a_plan_nothing_is_ready(home: ToyGateway):
    assert await read_readiness(home) == (503, {"ready": False, "epoch": 0, "bus": True, "missing": {}})


async def test_ready_means_that_every_stage_of_every_model_has_an_executor(home: ToyGateway):
    home.serve(VL)
    assert (await read_readiness(home))[1]["missing"] == {VL: {"vision": "no executor", "thinker": "no executor"}}

    await home.executor(VL, "E", "vision")
    assert (await read_readiness(home))[1]["missing"] == {VL: {"thinker": "no executor"}}

    await home.executor(VL, "L", "thinker")
    assert await read_readiness(home) == (200, {"ready": True, "epoch": 1, "bus": True, "missing": {}})


async def test_an_executor_that_leaves_makes_it_not_ready(home: ToyGateway):
    await home.all_of(VL)
    assert (await read_readiness(home))[0] == 200

    for executor in home.place.executors.values():
        await executor.drain(0.1)
    await wait_until(lambda: not home.members.statuses())

    assert (await read_readiness(home))[1]["missing"] == {VL: {"vision": "no executor", "thinker": "no executor"}}


async def test_a_model_that_is_new_in_the_plan_makes_it_not_ready(home: ToyGateway):
    await home.all_of(VL)

    home.serve(VL, OMNI)

    status, body = await read_readiness(home)
    assert status == 503
    assert set(body["missing"]) == {OMNI}


async def test_without_the_bus_it_is_not_ready(home: ToyGateway):
    await home.all_of(VL)

    home.bus.connected = False

    status, body = await read_readiness(home)
    assert (status, body["bus"], body["missing"]) == (503, False, {})
    home.bus.connected = True


# Metrics and documentation


async def test_metrics_are_in_the_text_format_of_prometheus(home: ToyGateway):
    await home.all_of(VL)
    await home.ask()

    response = await home.http.get("/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'omnibus_requests_total{{code="ok",model="{VL}"}}' in response.text
    assert "omnibus_gateway_inflight" in response.text


async def test_the_documentation_contains_every_route_and_its_schemas(home: ToyGateway):
    document = (await home.http.get("/openapi.json")).json()

    assert document["openapi"].startswith("3.")
    assert (document["info"]["title"], document["info"]["version"]) == ("Omnibus", __version__)
    plain = {"/v1/models", "/v1/models/{model}", "/health", "/readyz", "/version"}
    plain |= {"/api/tags", "/api/ps", "/api/show"}
    files = {"/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"}
    upload = "/v1/uploads/{upload_id}"
    files |= {"/v1/uploads", *(f"{upload}/{rest}" for rest in ("parts", "complete", "cancel"))}
    batches = {"/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"}
    responses = {
        f"/v1/responses{rest}" for rest in ("", "/{response_id}", "/{response_id}/cancel", "/{response_id}/input_items")
    }
    talk = "/v1/conversations/{conversation_id}"
    conversations = {"/v1/conversations", talk, f"{talk}/items", f"{talk}/items/{{item_id}}"}
    videos = {"/v1/videos", "/v1/videos/{video_id}", "/v1/videos/{video_id}/content"}
    around = plain | files | videos | batches | responses | conversations | {"/v1/realtime"}
    unsupported_paths = {"/v1/images/variations"}
    chats = {"/v1/chat/completions", "/v1/chat/completions/{token}/events"}
    assert set(document["paths"]) == around | chats | (home.table.posts.keys() - unsupported_paths)
    chat = document["paths"]["/v1/chat/completions"]["post"]
    body = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert body.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    for path in document["paths"].values():
        for operation in (each for name, each in path.items() if name != "parameters"):
            assert operation["responses"]
            assert operation["summary"]


async def test_every_reference_of_the_documentation_leads_somewhere(home: ToyGateway):
    text = (await home.http.get("/openapi.json")).text
    document = json.loads(text)

    for part in text.split('"$ref":"')[1:]:
        target = document
        for name in part.partition('"')[0].removeprefix("#/").split("/"):
            target = target[name]
        assert target


async def test_the_documentation_is_made_once(home: ToyGateway):
    assert (await home.http.get("/openapi.json")).text == (await home.http.get("/openapi.json")).text


async def test_no_page_runs_the_code_of_other_sites(home: ToyGateway):
    for path in ("/docs", "/redoc"):  # the console's own page, whose policy allows nothing from elsewhere
        assert (await home.http.get(path)).headers["location"] == "console/#/api"
    assert (await home.http.get("/docs/oauth2-redirect")).status_code == 404


# Errors in the usual shape


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/fine_tuning/jobs", 404, "not_found"),
        ("POST", "/v1/models", 405, "rejected"),
        ("GET", "/v1/chat/completions", 405, "rejected"),
        ("DELETE", "/v1/chat/completions", 405, "rejected"),
    ],
)
async def test_what_is_not_there_is_an_error_in_openais_shape(
    home: ToyGateway, method: str, path: str, status: int, code: str
):
    response = await home.http.request(method, path)

    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert (read_error_body(response)["code"], read_error_body(response)["type"]) == (code, "invalid_request_error")


async def test_a_wrong_method_is_told_the_right_one(home: ToyGateway):
    assert "POST" in (await home.http.get("/v1/chat/completions")).headers["allow"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"x"}', b"\xff\xfe"])
async def test_a_body_that_is_no_request_is_400(home: ToyGateway, body: bytes):
    response = await home.http.post("/v1/chat/completions", content=body)

    assert (response.status_code, read_error_body(response)["code"]) == (400, "bad_request")


async def test_every_error_of_chat_has_a_request_id(home: ToyGateway):
    response = await home.http.post("/v1/chat/completions", content=b"{")

    assert response.headers["x-request-id"] == read_error_body(response)["request_id"]


async def test_a_body_over_the_limit_is_413_before_it_is_read(home: ToyGateway):
    response = await home.http.post(
        "/v1/chat/completions", content=b"{}", headers={"content-length": str(home.settings.max_body + 1)}
    )

    assert (response.status_code, read_error_body(response)["code"]) == (413, "too_large")
