"""A graph that grows with its results: it keeps the longest of several parallel drafts.

If that draft is too short, another round runs. ``invoke`` is async, so it can await the tasks that it calls. Each round
is one segment, recorded and replayable alone. Equal calls get different seeds, so drafts differ.
"""

import asyncio

from pydantic import BaseModel

from omnibus.task import ChatInput, CompositeTask, Think
from omnibus.task.library import ThinkInput


class Question(BaseModel):
    text: str
    drafts: int = 3
    at_least: int = 40
    rounds: int = 3


class Best(BaseModel):
    answer: str
    rounds: int


class BestOf(CompositeTask[Question, Best]):
    model: Think = Think(model="qwen2.5-vl-tiny", component="thinker")

    async def invoke(self, question: Question) -> Best:
        best, rounds = "", 0
        while rounds < question.rounds and len(best) < question.at_least:
            rounds += 1
            chat = ChatInput.of(question.text, max_tokens=24, temperature=1.0)
            drafts = [
                self.model.invoke(ThinkInput(messages=chat.messages, params=chat.params))
                for _ in range(question.drafts)
            ]
            best = max([best, *await asyncio.gather(*(draft.text for draft in drafts))], key=len)
        return Best(answer=best, rounds=rounds)


BEST_OF = BestOf()


async def serve(question: Question) -> Best:
    return await BEST_OF(question)
