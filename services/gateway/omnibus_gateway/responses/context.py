"""Token counts and compaction of the input of an answer."""

from typing import NamedTuple

import msgspec

from omnibus.errors import Rejected
from omnibus.store import Store
from omnibus_gateway.core import AnswerAccumulator, ClientRequest
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.chat_request import ChatRequest, UserMessage
from omnibus_gateway.openai.responses import items as wire_items
from omnibus_gateway.openai.responses.context import (
    CompactedResponse,
    CompactRequest,
    InputTokensObject,
    InputTokensRequest,
)
from omnibus_gateway.openai.responses.response import response_usage
from omnibus_gateway.openai.responses.to_chat import ChatOfResponse, to_chat
from omnibus_gateway.responses.conversations import HistoryReader, resolve_references
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.chat_response import collect_answer

#: Instruction for a summary, sent after the conversation.
SUMMARIZE = (
    "Summarize this conversation for somebody who goes on with it and has only your summary and the user's own "
    "messages: facts, decisions, results of tools, and what is still to be done. Answer with the summary alone."
)

#: Replaces an empty summary.
EMPTY_SUMMARY = "none"


class LoadedContext(NamedTuple):
    """The chat of an input, and its items."""

    asked: ChatOfResponse
    items: list[wire_items.InputItem]


class ResponseContext:
    """Counts and compacts the input of answers of ``chat``; earlier responses are in ``store``."""

    def __init__(self, store: Store, chat: Chat) -> None:
        self._history = HistoryReader(store, chat.runs.settings.history_bytes)
        self._chat = chat

    async def load(self, context_request: InputTokensRequest | CompactRequest) -> LoadedContext:
        """Load the input of an answer to ``context_request``. Raises the errors of a response."""
        request = context_request.to_response_request()
        before = await self._history.load(request)
        items = resolve_references(request.items, before.items)
        return LoadedContext(to_chat(request, before.items, items, before.param), [*before.items, *items])

    def open_request(self, model: str, seed: int | None = None, pinned_path: str = "") -> ClientRequest:
        """Open a new request to ``model``. Raises like ``Chat.open_request``."""
        return self._chat.open_request(model, seed, pinned_path)

    async def count_tokens(self, loaded_context: LoadedContext, run: ClientRequest) -> InputTokensObject:
        """Count the prompt tokens for the model of ``run``. Raises the errors of a response."""
        got = await self._answer(run, loaded_context.asked, loaded_context.asked.request, count_only=True)
        return InputTokensObject(got.usage().prompt_tokens)

    async def compact(self, loaded_context: LoadedContext, run: ClientRequest) -> CompactedResponse:
        """Return the user's messages, and a summary by the model of ``run``.

        Raises the errors of a response.
        """
        request = loaded_context.asked.request
        messages = [*request.messages, UserMessage(SUMMARIZE)]
        got = await self._answer(run, loaded_context.asked, msgspec.structs.replace(request, messages=messages))
        summary = wire_items.Compaction(wire_items.encode_reasoning(got.text.strip() or EMPTY_SUMMARY))
        kept_items = [*filter(_is_of_user, loaded_context.items), summary]
        return CompactedResponse(
            new_secret_id("resp_"),
            int(run.created),
            wire_items.with_ids(kept_items, new_secret_id),
            response_usage(got.usage()),
        )

    async def _answer(
        self, run: ClientRequest, response_chat: ChatOfResponse, request: ChatRequest, *, count_only: bool = False
    ) -> AnswerAccumulator:
        """Return the answer of ``run`` to ``request``. Errors have the parameters of ``response_chat``."""
        try:
            return await collect_answer(self._chat, run, request, count_only=count_only)
        except Rejected as error:
            error.param = response_chat.client_param(error.param)
            raise


def _is_of_user(item: wire_items.InputItem) -> bool:
    return isinstance(item, wire_items.InputMessage) and item.role == "user"
