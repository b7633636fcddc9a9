"""``POST /tokenize`` and ``/detokenize``, as in vLLM: tokens of a prompt, without a computation of the model."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings
from omnibus_gateway.core import ClientRequest
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.openai import tokens
from omnibus_gateway.openai.chat_request import ChatRequest, UserMessage
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.chat_response import open_output_streams
from omnibus_gateway.tasks.prepared_chat import PreparedChat
from omnibus_gateway.tasks.resolve import describe_model, rename_params


@dataclass(slots=True)
class PromptReport:
    """Ids of a prompt, their entries in the vocabulary, and the text."""

    ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    text: str = ""

    def add(self, chunk: dict[str, Any]) -> None:
        """Append a chunk of the stream."""
        self.ids += chunk.get("ids", ())
        self.tokens += chunk.get("tokens", ())
        self.text += chunk.get("text", "")


class _TokenRoute(PostRoute):
    """A route that reads the prompts of models of ``chat``."""

    def __init__(self, settings: GatewaySettings, chat: Chat) -> None:
        super().__init__(settings)
        self._chat = chat

    def _choose_model(self, name: str) -> str:
        """Return the model called ``name``, or the only one. Raises ``BadRequest``."""
        plan = self._chat.runs.router.plan
        models = list(plan.models) if plan is not None else []
        if name or len(models) == 1:
            return name or models[0]
        raise BadRequest("Missing required parameter: 'model'.", param="model")

    def _open_request(self, model: str, post: PostRequest, sending: ResponseWriter) -> ClientRequest:
        sending.model = model
        run = sending.run = self._chat.open_request(model, pinned_path=post.pinned)
        return run

    async def _read_prompt(self, run: ClientRequest, prepared_chat: PreparedChat) -> PromptReport:
        """Return the tokens of a prompt. Raises ``BadRequest`` for media, and for a model without a tokenizer."""
        if prepared_chat.items:
            raise BadRequest(
                "Chats with media have no list of tokens: count them by /v1/responses/input_tokens.", param="messages"
            )
        prepared_chat.report_prompt()
        prompt_tokens = PromptReport()
        output = await self._chat.begin_answer(run, prepared_chat)
        async for batch in run.read_outputs(open_output_streams(output)):
            for _, item in batch:
                prompt_tokens.add(item.data)
        if not prompt_tokens.ids:
            raise BadRequest(f"The model '{run.model_name}' is simulated and has no tokenizer.", param="model")
        return prompt_tokens


class TokenizeRoute(_TokenRoute):
    """Returns the tokens of prompts and chats."""

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        request = tokens.parse_tokenize_request(post.body)
        chat_request = request.to_chat(self._choose_model(request.model))
        run = self._open_request(chat_request.model, post, sending)
        async with run.until_end():
            if request.messages is None:
                prepared_chat = PreparedChat(chat_request, [request.plain_prompt()], [])
            else:
                prepared_chat = await self._chat.prepare_request(run, chat_request)
            prompt_tokens = await self._read_prompt(run, prepared_chat)
        strings = prompt_tokens.tokens if request.return_token_strs else None
        context = await asyncio.to_thread(self._find_context, chat_request.model)
        await sending.send_body(JSON, tokens.encode_tokens(prompt_tokens.ids, strings, context))

    def _find_context(self, model: str) -> int | None:
        router = self._chat.runs.router
        return describe_model(router.base_model(model), router.plan).context if router.plan is not None else None


class DetokenizeRoute(_TokenRoute):
    """Returns the text of tokens."""

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        request = tokens.parse_detokenize_request(post.body)
        if not request.tokens:
            await sending.send_body(JSON, tokens.encode_text(""))
            return
        chat_request = ChatRequest(model=self._choose_model(request.model), messages=[UserMessage("")])
        run = self._open_request(chat_request.model, post, sending)
        with rename_params({"prompt": "tokens"}):
            async with run.until_end():
                prepared_chat = PreparedChat(chat_request, [request.plain_prompt()], [])
                prompt_tokens = await self._read_prompt(run, prepared_chat)
        await sending.send_body(JSON, tokens.encode_text(prompt_tokens.text))
