"""Metric labels never come from client input; metrics of the plan and of executors."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from omnibus.graph import GraphNode
from omnibus_gateway.request import load_report as metrics
from omnibus_gateway.routing.assignment import Assignment, ModelPart
from tests.unit.gateway.house import (
    VL,
    ToyGateway,
    build_chat_body,
    make_image_part,
    make_text_part,
    read_chat_answer,
    start_toy_gateway,
)

SAMPLES = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        await gateway.all_of(VL)
        metrics.register_metrics(gateway.settings, gateway.router, gateway.members, gateway.dispatcher, gateway.dead)
        yield gateway


async def read_samples(home: ToyGateway) -> SAMPLES:
    samples_by_name: SAMPLES = {}
    for family in text_string_to_metric_families((await home.http.get("/metrics")).text):
        for sample in family.samples:
            labels = tuple(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples_by_name.setdefault(sample.name, {})[labels] = sample.value
    return samples_by_name


async def read_labels(home: ToyGateway) -> dict[str, set[tuple[str, ...]]]:
    """Return all label sets by metric, except executors' states. A slow executor can become silent."""
    return {name: set(series) for name, series in (await read_samples(home)).items() if name != "omnibus_executors"}


async def send_marked(home: ToyGateway, mark: str) -> None:
    """Send requests with a ``mark`` in every field that a client controls."""
    requests: list[tuple[str, Any]] = [
        ("/v1/chat/completions", build_chat_body(mark, "hello")),
        ("/v1/chat/completions", build_chat_body(VL, "hello", user=mark, metadata={mark: mark})),
        ("/v1/chat/completions", build_chat_body(VL, "hello", modalities=[mark])),
        ("/v1/responses", {"model": mark, "input": mark}),
        ("/v1/responses", {"model": mark, "input": mark, "previous_response_id": mark, "store": False}),
        ("/v1/responses/compact", {"model": mark, "input": [{"type": "item_reference", "id": mark}]}),
        ("/v1/messages", {"model": mark, "max_tokens": 1, "messages": [{"role": "user", "content": mark}]}),
        ("/v1/messages/count_tokens", {"model": mark, "messages": [{"role": "user", "content": mark}]}),
        ("/v1/completions", {"model": mark, "prompt": mark}),
        ("/tokenize", {"model": mark, "prompt": mark}),
        ("/detokenize", {"model": mark, "tokens": [1]}),
        ("/v1/images/generations", {"model": mark, "prompt": mark}),
        ("/v1/images/edits", {"model": mark, "prompt": mark, "images": [{"image_url": mark}]}),
        ("/v1/embeddings", {"model": mark, "input": mark}),
        ("/v1/audio/speech", {"model": mark, "input": mark, "voice": mark}),
        ("/v1/videos", {"model": mark, "prompt": mark}),
        (f"/v1/apps/{mark}/invoke", {}),
        (f"/{mark}", {}),
    ]
    for path, body in requests:
        await home.http.post(path, json=body, headers={"x-omnibus-path": mark, "x-request-id": mark})


async def test_what_clients_make_up_is_no_label(home: ToyGateway):
    read_chat_answer(await home.ask())
    await send_marked(home, "mark-0")
    before = await read_labels(home)

    for number in range(1, 5):
        await send_marked(home, f"mark-{number}")

    after = await read_labels(home)
    assert after["omnibus_requests_total"] == before["omnibus_requests_total"]
    # Other series may appear later, but none with a client's invented name.
    assert not [found for series in after.values() for found in series if any("mark-" in each for each in found)]


async def test_a_path_is_told_with_its_planned_share(home: ToyGateway):
    read_chat_answer(await home.ask(content=[make_text_part("what is this?"), make_image_part()]))
    samples_by_name = await read_samples(home)

    planned_shares = samples_by_name["omnibus_path_planned_share"]
    of_type = {labels: share for labels, share in planned_shares.items() if "type=vision+thinker" in labels}
    assert sum(of_type.values()) == pytest.approx(1.0)
    assert {
        labels for labels, count in samples_by_name["omnibus_path_requests_total"].items() if f"model={VL}" in labels
    } >= {labels for labels in planned_shares if "type=vision+thinker" in labels and "path=E>L" in labels}


async def test_executors_are_counted_by_option_and_state(home: ToyGateway):
    executors = (await read_samples(home))["omnibus_executors"]

    assert executors == {(f"model={VL}", f"option={option}", "state=ok"): 1.0 for option in ("E", "L", "EL")}


async def test_work_on_its_way_is_none_when_all_is_answered(home: ToyGateway):
    read_chat_answer(await home.ask())
    await home.emptied()

    assert set((await read_samples(home))["omnibus_outstanding_tokens"].values()) == {0.0}


def make_part(model: str) -> ModelPart:
    return ModelPart(model, "thinker", frozenset({"thinker"}), (0,), ("thinker",), model)


async def test_a_graph_of_two_models_counts_on_a_path_of_each(home: ToyGateway):
    assignment = Assignment("a+b", "a=thinker,b=thinker", (make_part("a"), make_part("b")), tuple[GraphNode, ...]())
    before = (await read_samples(home))["omnibus_path_requests_total"]

    metrics.count_paths(assignment, "a=E>L,b=EL")
    metrics.count_paths(assignment, "of another shape")

    after = (await read_samples(home))["omnibus_path_requests_total"]
    assert {labels: count for labels, count in after.items() if labels not in before} == {
        ("model=a", "path=E>L", "type=thinker"): 1.0,
        ("model=b", "path=EL", "type=thinker"): 1.0,
    }
