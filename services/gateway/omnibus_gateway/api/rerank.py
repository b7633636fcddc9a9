"""``POST /v1/rerank``: documents by relevance to a query, by a model declared with a ``reranker``."""

import asyncio
from typing import cast

from omnibus.settings import GatewaySettings
from omnibus.task import use
from omnibus.task.library import Ranking, RankingInput
from omnibus.task.runtime import run as run_task
from omnibus_gateway.core import RequestFactory
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.media.inspect import MediaLimits
from omnibus_gateway.openai import rerank
from omnibus_gateway.tasks.prepared_chat import TaskCache, await_result, place_texts
from omnibus_gateway.tasks.resolve import create_reranking_task

APP = "rerank"


class RerankRoute(PostRoute):
    """Sorts documents by relevance."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, runs: RequestFactory) -> None:
        super().__init__(settings)
        self._runs = runs
        self._tasks = TaskCache(runs.router, create_reranking_task)
        self._limits = MediaLimits(body_bytes=settings.max_body)

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        rerank_request = rerank.parse_rerank_request(post.body)
        task = self._tasks.get_task(rerank_request.model)
        sending.model = rerank_request.model
        run = sending.run = self._runs.open_request(APP, rerank_request.model, pinned_path=post.pinned)
        run.price = self._runs.quotes.open_check(post.prices, task)
        async with run.until_end():
            documents, nbytes = await place_texts(
                self._runs, run, rerank_request.texts, "documents", self._limits.item_bytes
            )
            query_bytes = len(rerank_request.query) * len(rerank_request.documents)
            request = RankingInput(
                query=rerank_request.query, documents=documents, work=max(1, (nbytes + query_bytes) // 4)
            )
            with use(run):
                output = cast(Ranking, await run_task(task.invoke, request))
            scores, tokens = await asyncio.gather(await_result(output.scores), await_result(output.tokens))
        body = await asyncio.to_thread(rerank.encode_ranking, run.id, rerank_request, scores, tokens)
        await sending.send_body(JSON, body)
