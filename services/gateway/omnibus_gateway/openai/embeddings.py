"""Requests and responses of ``/v1/embeddings``.

Sources: the types of the ``openai`` package, 3.52, and Jina's API for inputs that are images.
"""

import base64
from typing import Annotated, Literal, cast

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from omnibus.errors import BadRequest
from omnibus_gateway.openai.messages import MediaRef
from omnibus_gateway.openai.parse import decode_body

PATH = "/v1/embeddings"

#: Limit of the texts and images of one request.
MAX_TEXTS = 2048

#: Limit of the tokens of one text.
MAX_TOKENS = 1 << 20

Text = Annotated[str, Meta(min_length=1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_TOKENS)]


class EmbeddingItem(Struct, frozen=True, forbid_unknown_fields=True):
    """A text, or an image as a (data) URL or base64."""

    text: Text | None = None
    image: Text | None = None


class EmbeddingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed, as strings or token ids, and images. None means that the client did not set the field."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    #: A text, or a list of texts; the tokens of a text, or a list of such. A list may have images.
    input: Text | Annotated[list[Text | TokenId | Tokens | EmbeddingItem], Meta(min_length=1, max_length=MAX_TOKENS)]
    #: Number of dimensions to keep. The vectors then get length 1 again. Only for models that were trained for it.
    dimensions: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    #: An extra: how a language model's token vectors of a text are pooled. The default is the mean.
    pooling: Literal["mean", "last"] | None = None
    #: An extra: name of a prompt of a sentence encoder, put before each text. The default is the checkpoint's.
    prompt_name: Annotated[str, Meta(max_length=256)] | None = None
    user: str | None = None

    @property
    def items(self) -> list[str | list[int] | EmbeddingItem]:
        if isinstance(self.input, str):
            return [self.input]
        return cast(
            "list[str | list[int] | EmbeddingItem]", [self.input] if isinstance(self.input[0], int) else self.input
        )

    @property
    def texts(self) -> list[str | list[int]]:
        texts = (item.text if isinstance(item, EmbeddingItem) else item for item in self.items)
        return [text for text in texts if text is not None]

    @property
    def images(self) -> dict[int, MediaRef]:
        """The images by their places in ``items``."""
        return {
            place: _image_ref(item.image, f"input[{place}].image")
            for place, item in enumerate(self.items)
            if isinstance(item, EmbeddingItem) and item.image is not None
        }


class Embedding(Struct, frozen=True):
    """One vector. ``embedding`` is a list of numbers, or base64 of float32 in little-endian order."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, frozen=True):
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


_DECODER = msgspec.json.Decoder(EmbeddingRequest)
_encode = msgspec.json.Encoder().encode


def parse_embedding_request(body: bytes) -> EmbeddingRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``."""
    request = decode_body(_DECODER, body)
    ids = 0 if isinstance(request.input, str) else sum(isinstance(each, int) for each in request.input)
    if ids and ids < len(request.input):
        raise BadRequest("Send the tokens of one text, or a list of texts, not both in one list.", param="input")
    if len(request.items) > MAX_TEXTS:
        raise BadRequest(f"input must have at most {MAX_TEXTS} items, not {len(request.items)}.", param="input")
    for place, item in enumerate(request.items):
        if isinstance(item, EmbeddingItem) and (item.text is None) == (item.image is None):
            raise BadRequest("An item must have either a text or an image.", param=f"input[{place}]")
    return request


def _image_ref(image: str, param: str) -> MediaRef:
    is_url = image[:5].lower() == "data:" or "://" in image[:16]
    return MediaRef("image", url=image if is_url else "", data="" if is_url else image, param=param)


def encode_embeddings(
    request: EmbeddingRequest, vectors: NDArray[np.float32], tokens: int, *, truncates: bool = True
) -> bytes:
    """Encode the response to ``vectors`` [items, width]. Raises the errors of ``fit_dimensions``."""
    vectors = fit_dimensions(request, vectors, truncates=truncates)
    data = [Embedding(index, _encode_vector(request, vector)) for index, vector in enumerate(vectors)]
    return _encode(EmbeddingList(request.model, data, EmbeddingUsage(tokens, tokens)))


def fit_dimensions(
    request: EmbeddingRequest, vectors: NDArray[np.float32], *, truncates: bool = True
) -> NDArray[np.float32]:
    """Return ``vectors`` [items, width] with the requested dimensions.

    Raises ``BadRequest`` if those exceed the width, or are another number unless the route ``truncates``.
    """
    if request.dimensions is not None:
        if not truncates and request.dimensions != vectors.shape[1]:
            raise BadRequest(
                f"vectors of this model have {vectors.shape[1]} dimensions and cannot be truncated: omit dimensions",
                param="dimensions",
            )
        vectors = _truncate_vectors(vectors, request.dimensions)
    return vectors


def _truncate_vectors(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    if count > vectors.shape[1]:
        raise BadRequest(
            f"dimensions must be at most {vectors.shape[1]} for this model, not {count}", param="dimensions"
        )
    cut = vectors[:, :count]
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def _encode_vector(request: EmbeddingRequest, vector: NDArray[np.float32]) -> list[float] | str:
    if request.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
