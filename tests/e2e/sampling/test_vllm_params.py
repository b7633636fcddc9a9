"""Each vLLM parameter in docs/routes.md works as documented."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.e2e.sampling.conftest import RECOMMENDED

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[3]
HELLO = [{"role": "user", "content": "hello there"}]
#: Parameter values that change the answer.
Body = dict[str, Any]


class ParameterRow(NamedTuple):
    name: str
    transformers: str
    vllm: str


def table_rows() -> Iterator[ParameterRow]:
    section = (ROOT / "docs/routes.md").read_text().partition("## Parameters of vLLM")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            yield from (ParameterRow(name, cells[1], cells[2]) for name in re.findall(r"`(\w+)`", cells[0]))


ROWS = {row.name: row for row in table_rows()}
GREEDY: Body = {"model": RECOMMENDED, "messages": HELLO, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
SAMPLED: Body = {**GREEDY, "temperature": 1.5, "seed": 4}
SHAPED: Body = {**GREEDY, "ignore_eos": None, "max_tokens": 60}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
#: Requests with answers other than the plain one, the parameter, and a condition for the text.
ANSWERS: dict[str, tuple[Body, Any, Callable[[str, str], bool]]] = {
    "temperature": ({**SAMPLED, "temperature": None}, 1.9, lambda text, plain: text != plain),
    "top_p": (SAMPLED, 1e-6, lambda text, plain: text != plain),
    "top_k": (SAMPLED, 1, lambda text, plain: text != plain),
    "min_p": (SAMPLED, 1.0, lambda text, plain: text != plain),
    "repetition_penalty": (GREEDY, 5.0, lambda text, plain: text != plain),
    "presence_penalty": (GREEDY, 2.0, lambda text, plain: text != plain),
    "frequency_penalty": (GREEDY, 2.0, lambda text, plain: text != plain),
    "logit_bias": (GREEDY, {"40": 100}, lambda text, plain: len(set(text)) == 1),
    "allowed_token_ids": (GREEDY, [40], lambda text, plain: len(set(text)) == 1),
    "structured_outputs": (SHAPED, {"json": CITY}, lambda text, plain: json.loads(text)["city"] in ("Rome", "Oslo")),
    "guided_json": (SHAPED, CITY, lambda text, plain: json.loads(text)["city"] in ("Rome", "Oslo")),
    "guided_regex": (SHAPED, "[0-9]{3}/[a-c]{1,3}x", lambda text, plain: bool(re.fullmatch("[0-9]{3}/[a-c]{1,3}x", text))),
    "guided_choice": (SHAPED, ["ye\ns", 'n"o'], lambda text, plain: text in ("ye\ns", 'n"o')),
    "guided_grammar": (SHAPED, 'start: "a" /[0-9]{2}/', lambda text, plain: bool(re.fullmatch("a[0-9]{2}", text))),
    "min_tokens": (GREEDY, 12, lambda text, plain: text == plain),
    "ignore_eos": ({**GREEDY, "ignore_eos": None}, True, lambda text, plain: text.startswith(plain)),
    "skip_special_tokens": (GREEDY, False, lambda text, plain: bool(text)),
    "spaces_between_special_tokens": (GREEDY, False, lambda text, plain: text == plain),
    "truncate_prompt_tokens": (GREEDY, 3, lambda text, plain: text != plain),
    "chat_template_kwargs": (GREEDY, {"enable_thinking": False}, lambda text, plain: bool(text)),
    "add_generation_prompt": (GREEDY, False, lambda text, plain: text != plain),
    "continue_final_message": (
        {**GREEDY, "messages": [*HELLO, {"role": "assistant", "content": "It is"}]},
        True,
        lambda text, plain: text != plain,
    ),
}  # fmt: skip
#: Values that parameters have which are rejected.
REJECTED: Body = {
    "echo": True,
    "best_of": 3,
    "prompt_logprobs": 1,
    "priority": 3,
    "mm_processor_kwargs": {"fps": 1},
    "sampling_params_list": [{"temperature": 0}],
}
#: Parameters that need the plain answer, covered by separate tests.
OWN_TESTS = {"stop", "stop_token_ids", "include_stop_str_in_output", "bad_words", "max_tokens"}


async def send_body(client: httpx.AsyncClient, body: Body, path: str = "/v1/chat/completions") -> httpx.Response:
    return await client.post(path, json={name: value for name, value in body.items() if value is not None})


async def ask_text(client: httpx.AsyncClient, body: Body) -> str:
    answer = await send_body(client, body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_every_row_is_tried():
    assert {name for name, row in ROWS.items() if row.transformers == "rejected"} | {"echo"} == REJECTED.keys()
    assert ROWS.keys() == ANSWERS.keys() | REJECTED.keys() | OWN_TESTS
    assert {(row.transformers, row.vllm) for row in ROWS.values()} == {
        ("yes", "yes"), ("rejected", "rejected"), ("completions", "completions"), ("no effect", "no effect"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_parameter_does_what_it_says(client: httpx.AsyncClient, name: str):
    body, value, holds = ANSWERS[name]

    plain, text = await ask_text(client, body), await ask_text(client, {**body, name: value})

    assert holds(text, plain), (text, plain)


@pytest.mark.parametrize("name", REJECTED)
async def test_a_parameter_is_rejected_by_name_with_an_alternative(client: httpx.AsyncClient, name: str):
    answer = await send_body(client, {**GREEDY, name: REJECTED[name]})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name
    assert "use" in answer.json()["error"]["message"] or "send" in answer.json()["error"]["message"]


async def test_stops_end_the_text_and_are_part_of_it_where_that_is_wanted(client: httpx.AsyncClient):
    plain = await ask_text(client, GREEDY)
    stop = plain[4:6]

    assert await ask_text(client, {**GREEDY, "stop": stop}) == plain.partition(stop)[0]
    text_with_stop = await ask_text(client, {**GREEDY, "stop": stop, "include_stop_str_in_output": True})
    assert text_with_stop == plain.partition(stop)[0] + stop


async def test_stop_tokens_and_bad_words(client: httpx.AsyncClient):
    body = {"model": RECOMMENDED, "prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    two = {**body, "allowed_token_ids": [40, 41], "logit_bias": {"40": 5}}
    forced_body = {**two, "stop_token_ids": [40]}
    banned_choice = (await send_body(client, {**two, "bad_words": ["F"]}, "/v1/completions")).json()["choices"][0]
    stopped_choice = (await send_body(client, forced_body, "/v1/completions")).json()["choices"][0]
    least = (await send_body(client, {**forced_body, "min_tokens": 4}, "/v1/completions")).json()

    assert banned_choice["text"] == "G" * 12
    assert (stopped_choice["text"], stopped_choice["finish_reason"]) == ("", "stop")
    assert (least["usage"]["completion_tokens"], len(set(least["choices"][0]["text"]))) == (5, 1)


@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("structured_outputs", {"structured_outputs": {"regex": "("}}),
        ("guided_regex", {"guided_regex": "(?=a)"}),
        ("guided_grammar", {"guided_grammar": "start: nothing"}),
        ("guided_json", {"guided_json": "{"}),
        ("allowed_token_ids", {"allowed_token_ids": [10**8]}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ],
)
async def test_what_cannot_be_obeyed_is_named(client: httpx.AsyncClient, param: str, more: Body):
    answer = await send_body(client, {**GREEDY, "ignore_eos": None, **more})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_responses_take_them_as_well(client: httpx.AsyncClient):
    body = {"model": RECOMMENDED, "input": "hello", "guided_choice": ["yes", "no"], "max_output_tokens": 20}

    answer = await send_body(client, body, "/v1/responses")
    rejection = await send_body(client, {**body, "priority": 2}, "/v1/responses")

    assert answer.json()["output"][-1]["content"][0]["text"] in ("yes", "no")
    assert (rejection.status_code, rejection.json()["error"]["param"]) == (400, "priority")
