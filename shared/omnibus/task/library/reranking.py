"""Rerankers: the relevance of documents to a query."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, SkipValidation

from omnibus.task.base import CompositeTask, UnitTask
from omnibus.task.library.language import Texts
from omnibus.task.types import OnDemand, TaskInput, TaskOutput, Tensor, Value


class RerankInput(TaskInput):
    """A query and documents."""

    #: The text with which each document is compared.
    query: str
    #: A list of texts, or a handle of its JSON when they are long.
    documents: Texts


class RerankOutput(TaskOutput):
    #: [documents] float32, the most relevant one highest; from 0 to 1 unless the model's scores are logits.
    scores: Tensor
    #: Tokens of all pairs of the query and a document.
    tokens: OnDemand[Value[int]]


class Rerank(UnitTask[RerankInput, RerankOutput]):
    """A query and documents to scores, by a cross-encoder.

    Raises ``ContextTooLong`` for a query and a document that are together longer than the model's context.
    """

    kind: ClassVar[str] = "rerank"
    service: ClassVar[str] = "encoder"


class RankingInput(BaseModel):
    """A query and the documents to rank."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: As ``RerankInput.query``.
    query: str
    #: As ``RerankInput.documents``.
    documents: Texts
    #: Expected tokens of all pairs, for load estimates.
    work: int = 1


class Ranking(BaseModel):
    """Scored documents."""

    #: Tensor [documents] float32, as ``RerankOutput.scores``.
    scores: SkipValidation[Tensor]
    #: Tokens of all pairs of the query and a document.
    tokens: SkipValidation[Value[int]]


class TextReranking(CompositeTask[RankingInput, Ranking]):
    """A query and documents to scores."""

    #: The cross-encoder.
    reranker: Rerank

    def invoke(self, request: RankingInput) -> Ranking:
        pairs = RerankInput(query=request.query, documents=request.documents)
        result = self.reranker.invoke(pairs, work=request.work)
        return Ranking(scores=result.scores, tokens=result.tokens)
