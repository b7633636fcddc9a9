"""Isolation of tenants: cached media and prompts, and records."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest, NotFound
from omnibus_gateway.request.record import parse_record_rules
from omnibus_gateway.tenancy.tenant import LogBudget, Tenant, acting_as
from tests.unit.gateway.auth.test_middleware import ADMIN, Gated, start_gated_gateway
from tests.unit.gateway.house import TEXT, VL, make_image_part, make_text_part, read_chat_answer, write_chat_words
from tests.unit.gateway.samples import make_sample_picture
from tests.unit.sidecar.node import wait_until


async def test_what_is_kept_of_a_tenants_media_has_a_salt_of_its_own(tmp_path: Path):
    salts: list[str] = []

    async def record_media_salt(job: Any) -> None:
        salts.append((await job.value("media")).data.get("salt", ""))
        await job.put("embedding", {"tokens": 1}, (await job.value("media")).array[:4].astype("float32").reshape(1, 4))

    async with start_gated_gateway(tmp_path) as gate:
        gate.home.serve(VL)
        await gate.home.executor(VL, "E", "vision", vision=record_media_salt)
        await gate.home.executor(VL, "L", "thinker")
        for tenant in ("a", "b", "a", ADMIN):
            read_chat_answer(await gate.ask(tenant, [make_image_part()], VL))

    assert salts[0] == salts[2] != ""
    assert len({*salts}) == 3
    assert salts[3] == ""


@pytest.mark.parametrize("length", [10, 20_000])
async def test_what_is_kept_of_a_tenants_prompts_has_a_salt_of_its_own(tmp_path: Path, length: int):
    """This includes parameters that are too long for a message."""
    salts: list[str] = []

    async def record_params_salt(job: Any) -> None:
        params = await job.value("params")
        salts.append((params if isinstance(params, dict) else json.loads(bytes(params.array))).get("cache_salt", ""))
        await write_chat_words(job)

    look_function = {"description": "x" * length, "name": "look", "parameters": {"type": "object"}}
    async with start_gated_gateway(tmp_path) as gate:
        gate.home.serve(TEXT)
        await gate.home.executor(TEXT, "L", "thinker", thinker=record_params_salt)
        for tenant in ("a", "b", "a", ADMIN):
            read_chat_answer(
                await gate.ask(tenant, tools=[{"type": "function", "function": look_function}], prompt_cache_key="us")
            )

    assert salts[0] == salts[2] != ""
    assert len({*salts}) == 3
    assert salts[3] == ""


async def test_tenants_that_are_not_kept_apart_share_prompts(tmp_path: Path):
    salts: list[str] = []

    async def record_params_salt(job: Any) -> None:
        salts.append(job.inputs["params"].get("cache_salt", ""))
        await write_chat_words(job)

    async with start_gated_gateway(tmp_path, isolate=False) as gate:
        gate.home.serve(TEXT)
        await gate.home.executor(TEXT, "L", "thinker", thinker=record_params_salt)
        for tenant in ("a", "b"):
            read_chat_answer(await gate.ask(tenant))

    assert salts == ["", ""]


async def test_nothing_that_a_tenant_sends_or_gets_is_kept_where_its_rule_says_so(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        gate.home.records.rules = parse_record_rules("full", "a=digest")
        gate.home.serve(VL)
        await gate.home.executor(VL, "L", "thinker")
        await gate.home.executor(VL, "E", "vision")
        documents: dict[str, bytes] = {}
        for tenant in ("a", "b"):
            response = await gate.ask(
                tenant,
                [
                    make_text_part(f"a secret of {tenant}"),
                    make_image_part(make_sample_picture("PNG", (8, len(documents) + 8))),
                ],
                VL,
            )
            read_chat_answer(response)
            await gate.home.ended(response.headers["x-request-id"])
            documents[tenant] = msgspec.json.encode(await gate.home.records.find(response.headers["x-request-id"]))

        assert b"a secret of a" not in documents["a"]
        assert documents["b"].count(b"a secret of b") == 2  # in the prompt, and in what the toy says back
        await wait_until(lambda: _is_kept(gate, make_sample_picture("PNG", (8, 9))))
        assert not await _is_kept(gate, make_sample_picture("PNG", (8, 8)))  # the earlier one


async def test_a_tenant_that_has_written_its_share_of_records_leaves_digests_and_others_their_content(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        gate.home.records.budget = LogBudget(100, 1e6)
        gate.home.serve(TEXT)
        await gate.home.executor(TEXT, "L", "thinker")
        documents: list[bytes] = []
        for tenant in ("a", "a", "b"):
            response = await gate.ask(tenant, [make_text_part(f"a secret of {tenant}")], TEXT)
            read_chat_answer(response)
            id = response.headers["x-request-id"]
            await gate.home.ended(id)
            documents.append(msgspec.json.encode((await gate.home.records.find(id)).invocation))

    assert [b"a secret of" in document for document in documents] == [True, False, True]


async def _is_kept(gate: Gated, media: bytes) -> bool:
    try:
        return await gate.home.keep.get(sha256(media).hexdigest()) == media
    except NotFound:
        return False


def test_dead_letters_of_a_tenant_keep_no_more_than_its_records():
    rules = parse_record_rules("digest", "a=digest, b=full")

    assert [rules.keeps_content(tenant) for tenant in ("a", "b", "c", "")] == [False, True, False, False]
    assert [rules.may_keep_letter(tenant) for tenant in ("a", "b", "c", "")] == [False, True, True, True]
    assert rules.any_full
    assert not parse_record_rules("digest", "a=digest").any_full


@pytest.mark.parametrize("text", ["a", "a=stages", "=digest", "a b=digest", "a=digest;b=full"])
def test_a_rule_that_is_none_is_refused_with_its_form(text: str):
    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_RECORD_TENANTS.*must be TENANT=full or TENANT=digest"):
        parse_record_rules("full", text)


def test_salts_of_tenants_do_not_meet():
    assert Tenant("b").salt("a", True) != Tenant("").salt("ab", True)
    assert Tenant("c").salt("ab", True) != Tenant("bc").salt("a", True)
    assert Tenant("a").salt("common", False) == "common"


async def test_only_the_key_of_its_tenant_removes_a_file_that_was_made(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        with acting_as(Tenant("a")):
            ids = [(await gate.home.files.put(b"sound", "audio/wav")).id for _ in range(2)]
        path, last = (f"/v1/files/{id}" for id in ids)

        rejections = [await gate.get("DELETE", path, key) for key in ("", "wrong", "b")]
        read = [await gate.get("GET", f"{path}/content", key) for key in ("", "b", "a")]
        removal = await gate.get("DELETE", path, "a")

        assert [each.status_code for each in rejections] == [404] * 3
        assert [(each.status_code, each.content) for each in read] == [(200, b"sound")] * 3
        assert removal.status_code == 200
        assert (await gate.get("GET", f"{path}/content")).status_code == 404
        assert (await gate.get("DELETE", last, ADMIN)).status_code == 200  # the operator's is everything
