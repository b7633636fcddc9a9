"""``/v1/messages`` and ``/v1/messages/count_tokens``: chats in Anthropic's format."""

import msgspec

from omnibus.settings import GatewaySettings
from omnibus_gateway.anthropic.translate import parse_message_request, to_chat
from omnibus_gateway.anthropic.wire import CountTokensRequest, MessageRequest, MessageTokensCount
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.tasks.chat import Chat, ChatAnswerer
from omnibus_gateway.tasks.chat_response import collect_answer


class MessageRoute(PostRoute):
    """Answers conversations with a message."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, answer_chat: ChatAnswerer) -> None:
        super().__init__(settings)
        self._answer_chat = answer_chat

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        translated = to_chat(parse_message_request(post.body, MessageRequest))
        sending.model = translated.chat.model
        with translated.rename_params():
            await self._answer_chat(translated.chat, post.pinned, sending, None, post.prices)


class CountTokensRoute(PostRoute):
    """Counts the tokens of conversations."""

    def __init__(self, settings: GatewaySettings, chat: Chat) -> None:
        super().__init__(settings)
        self._chat = chat

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        translated = to_chat(parse_message_request(post.body, CountTokensRequest))
        sending.model = translated.chat.model
        run = sending.run = self._chat.open_request(translated.chat.model, pinned_path=post.pinned)
        with translated.rename_params():
            got = await collect_answer(self._chat, run, translated.chat, count_only=True)
        await sending.send_body(JSON, msgspec.json.encode(MessageTokensCount(got.usage().prompt_tokens)))
