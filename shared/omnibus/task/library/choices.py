"""Several answers to one chat: media are encoded once, the language model is called for each answer."""

from collections.abc import Sequence
from typing import cast

from pydantic import BaseModel, SkipValidation

from omnibus.task.base import CompositeTask
from omnibus.task.library.chat import MLLM, ChatInput, ChatOutput, Omni
from omnibus.task.library.language import Params, TextChunk
from omnibus.task.types import Stream


class ChoicesInput(ChatInput):
    """A chat for several answers in text."""

    #: Parameters of each answer, in the place of ``params``. Answers whose parameters are equal differ in their random
    #: numbers.
    choices: tuple[Params, ...] = ()


class ChatChoices(BaseModel):
    """The answers, in the order of ``ChoicesInput.choices``."""

    #: A stream of ``TextChunk`` for each.
    texts: Sequence[SkipValidation[Stream[TextChunk]]]


class ChatFanOut(CompositeTask[ChoicesInput, ChatChoices]):
    """Several answers of the task ``chat``. A task with its own ``invoke`` records its graph for each answer."""

    #: A task whose ``invoke`` awaits nothing.
    chat: SkipValidation[CompositeTask[ChatInput, ChatOutput]]

    def invoke(self, request: ChoicesInput) -> ChatChoices:
        requests = [request.model_copy(update={"params": params}) for params in request.choices]
        chat = self.chat
        if isinstance(chat, MLLM) and type(chat).invoke in (MLLM.invoke, Omni.invoke):
            items = chat.encode_media(request)
            return ChatChoices(texts=[chat.think_about(each, items).text for each in requests])
        return ChatChoices(texts=[cast(ChatOutput, chat.invoke(each)).text for each in requests])
