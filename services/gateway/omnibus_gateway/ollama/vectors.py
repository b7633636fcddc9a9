"""Requests for vectors under ``/api/embed`` and ``/api/embeddings``, and their responses."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnibus.errors import BadRequest
from omnibus_gateway.ollama.translate import base_name
from omnibus_gateway.ollama.wire import EmbedRequest, EmbedResponse, PromptEmbedding, PromptEmbeddingRequest
from omnibus_gateway.openai import embeddings
from omnibus_gateway.openai.parse import decode_body

_encode = msgspec.json.Encoder().encode
_embed_decoder = msgspec.json.Decoder(EmbedRequest)
_embedding_decoder = msgspec.json.Decoder(PromptEmbeddingRequest)


def parse_embed(body: bytes) -> embeddings.EmbeddingRequest:
    """Decode a request of ``/api/embed``. Raises ``BadRequest``."""
    request = decode_body(_embed_decoder, body)
    return _build_request(base_name(request.model), request.input, request.dimensions)


def parse_embedding(body: bytes) -> embeddings.EmbeddingRequest:
    """Decode a request of ``/api/embeddings``. Raises ``BadRequest``."""
    request = decode_body(_embedding_decoder, body)
    return _build_request(base_name(request.model), request.prompt, None)


def _build_request(model: str, texts: str | list[str], dimensions: int | None) -> embeddings.EmbeddingRequest:
    count = len(texts) if isinstance(texts, list) else 1
    if not texts or (isinstance(texts, list) and "" in texts):
        raise BadRequest("input must have at least one text, and no empty one.", param="input")
    if count > embeddings.MAX_TEXTS:
        raise BadRequest(f"input must have at most {embeddings.MAX_TEXTS} texts, not {count}.", param="input")
    return embeddings.EmbeddingRequest(
        model=model, input=texts if isinstance(texts, str) else [*texts], dimensions=dimensions
    )


def encode_embed(
    request: embeddings.EmbeddingRequest, vectors: NDArray[np.float32], tokens: int, *, truncates: bool = True
) -> bytes:
    """Encode the response of ``/api/embed``, with the arguments of ``embeddings.encode_embeddings``."""
    fitting = embeddings.fit_dimensions(request, vectors, truncates=truncates)
    return _encode(EmbedResponse(request.model, fitting.tolist(), tokens))


def encode_embedding(
    request: embeddings.EmbeddingRequest, vectors: NDArray[np.float32], tokens: int, *, truncates: bool = True
) -> bytes:
    """Encode the response of ``/api/embeddings``, with the arguments of ``embeddings.encode_embeddings``."""
    return _encode(PromptEmbedding(vectors[0].tolist()))
