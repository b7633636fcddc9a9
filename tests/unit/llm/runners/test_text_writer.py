"""Text written as steps complete equals the text of awaited steps."""

from itertools import islice

import pytest

from omnibus_llm.engine.params import TextGenerationParams
from omnibus_llm.engine.sequence import TokenStep
from omnibus_llm.runners.thinker import TextWriter, open_reply, send_answer
from omnibus_models.contract import Thinker
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat


@pytest.mark.parametrize("pieces", [[1] * 10, [10], [3, 7]])
async def test_steps_that_are_written_as_they_come_say_what_steps_that_are_awaited_say(
    thinker: Thinker, pieces: list[int]
) -> None:
    params = TextGenerationParams(stop=("fox",))
    ids = thinker.encode_text("the quick brown fox jumps over the lazy dog")[:10]
    steps = [TokenStep(id, None) for id in ids]
    written_job, reply = make_chat_job(make_text_chat(1)), open_reply(thinker, params, False)
    writer, rest, whole = TextWriter(written_job, reply), iter(steps), []
    for piece in pieces:
        whole.append(writer.add_steps([*islice(rest, piece)]))
    awaited_job, other = make_chat_job(make_text_chat(1)), open_reply(thinker, params, False)
    left = iter([steps])

    async def take_steps() -> list[TokenStep]:
        return next(left)

    await send_answer(awaited_job, take_steps, other, None)

    assert written_job.text == awaited_job.text == "the quick brown "
    assert (reply.finish, other.finish, whole[-1]) == ("stop", "stop", True)
    assert reply.tokens == other.tokens
