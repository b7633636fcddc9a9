"""Requests and responses of ``/v1/rerank``. Source: Cohere's and Jina's APIs, and vLLM 0.32."""

from typing import Annotated

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from omnibus_gateway.openai.parse import decode_body

PATH = "/v1/rerank"

#: Limit of the documents of one request.
MAX_DOCUMENTS = 2048


class RerankDocument(Struct, frozen=True, forbid_unknown_fields=True):
    text: str


class RerankRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query, and documents to sort by relevance. None means that the client did not set the field."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    #: Number of results. The default is all documents.
    top_n: Annotated[int, Meta(ge=1)] | None = None
    #: Whether results have the text of their document. The default is false.
    return_documents: bool | None = None
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RerankResult(Struct, frozen=True):
    """One document. ``index`` is its place in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class RerankResponse(Struct, frozen=True):
    """The most relevant documents, best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage


_DECODER = msgspec.json.Decoder(RerankRequest)
_encode = msgspec.json.Encoder().encode


def parse_rerank_request(body: bytes) -> RerankRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``."""
    return decode_body(_DECODER, body)


def encode_ranking(id: str, request: RerankRequest, scores: NDArray[np.float32], tokens: int) -> bytes:
    """Encode the response to ``scores`` [documents]. Equal ones keep the order of the request."""
    texts, best = request.texts, np.argsort(-scores, kind="stable")[: request.top_n]
    results = [
        RerankResult(
            index=int(index),
            relevance_score=float(scores[index]),
            document=RerankDocument(texts[index]) if request.return_documents else UNSET,
        )
        for index in best
    ]
    return _encode(RerankResponse(id, request.model, results, RerankUsage(tokens, tokens)))
