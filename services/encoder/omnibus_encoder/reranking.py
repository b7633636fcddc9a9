"""The engine of a reranker: a query and documents in, one score for each document out."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus_encoder.media_encoder import EncodeSettings
from omnibus_encoder.text_runner import TextRunner, read_json
from omnibus_engines.component import ComponentSource, run_in_pool
from omnibus_models.contract import Prepared, TextReranker


class RerankRunner(TextRunner[TextReranker]):
    """A ``Runner`` from texts to scores.

    Inputs: ``query``, and ``documents``, a JSON list of texts or an ``Item`` with its UTF-8 bytes. Outputs: ``scores``,
    float32 [documents], and ``tokens``, the total number of all pairs.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: EncodeSettings
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), settings)

    async def run(self, job: Job) -> None:
        query, documents = _read_query(job), _read_documents(await job.value("documents"))
        # One by one, so that requests take turns.
        pairs = [await run_in_pool(self._words, self.model.prepare_pair, query, each) for each in documents]
        job.release_input("documents")
        scores = await asyncio.gather(*(self._batcher.encode(each) for each in pairs))
        await job.put("scores", {}, np.array(scores, np.float32))
        if job.has_consumer("tokens"):
            await job.put("tokens", {"value": sum(each.meta["n_tokens"] for each in pairs)})

    def _compute_batch(self, texts: Sequence[Prepared]) -> list[float]:
        return self.model.score(texts)


def _read_query(job: Job) -> str:
    query = job.inputs.get("query")
    if not isinstance(query, str) or not query:
        raise BadRequest("query must be a text", param="query")
    return query


def _read_documents(value: Any) -> list[str]:
    documents = read_json(value, "documents")
    if not isinstance(documents, list) or not documents or not all(isinstance(each, str) for each in documents):
        raise BadRequest("documents must be a list of texts", param="documents")
    return documents
