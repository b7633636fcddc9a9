"""Conversation keys are sent only to executors that support them."""

import pytest

from omnibus.executor import status as identity
from omnibus.executor.runner import Job
from tests.unit.gateway.house import TEXT, TOYS, ToyGateway, read_chat_answer


@pytest.mark.parametrize(("takes", "sent"), [(identity.TAKES, True), ((), False)])
async def test_the_key_of_a_conversation_is_sent_where_all_executors_take_it(
    home: ToyGateway, monkeypatch: pytest.MonkeyPatch, takes: tuple[str, ...], sent: bool
):
    keys: list[str] = []

    async def record_key(job: Job) -> None:
        keys.append(job.inputs["params"].get("cache_key", ""))
        await usual(job)

    usual = TOYS["thinker"]
    monkeypatch.setitem(TOYS, "thinker", record_key)
    monkeypatch.setattr(identity, "TAKES", takes)
    await home.all_of(TEXT)

    for _ in range(2):
        read_chat_answer(await home.ask(TEXT, "hello", prompt_cache_key="talk"))

    assert len(keys) == 2
    assert len({*keys}) == 1
    assert bool(keys[0]) is sent
