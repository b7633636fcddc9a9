"""Embedders of texts and images to vectors that can be compared."""

from pydantic import BaseModel, ConfigDict, SkipValidation

from omnibus.task.base import CompositeTask
from omnibus.task.library.language import Embed, EmbedInput, Texts
from omnibus.task.library.media import Encode, EncodeInput, PlacedMedia
from omnibus.task.types import Tensor, Value


class ImageTextInput(BaseModel):
    """Texts and images to embed."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: As ``EmbedInput.text``; None without texts.
    text: Texts | None = None
    #: Images, as ``EncodeInput.media``.
    images: tuple[PlacedMedia, ...] = ()
    #: Expected tokens of the texts, and of each image, for load estimates.
    work: int = 1
    image_work: tuple[int, ...] = ()


class ImageTextVectors(BaseModel):
    """Embedded texts and images."""

    #: Tensor [texts, width] float32 of vectors of length 1; None without texts.
    embedding: SkipValidation[Tensor] | None
    #: Tensors [1, width] float32, one for each image.
    images: SkipValidation[tuple[Tensor, ...]]
    #: Tokens of all texts together, then of each image.
    tokens: SkipValidation[tuple[Value[int], ...]]


class ImageTextEmbedding(CompositeTask[ImageTextInput, ImageTextVectors]):
    """Texts and images to vectors, by two encoders that can run apart."""

    #: The text encoder.
    embedder: Embed
    #: The image encoder.
    encoder: Encode

    def invoke(self, request: ImageTextInput) -> ImageTextVectors:
        texts = []
        if request.text is not None:
            texts.append(self.embedder.invoke(EmbedInput(text=request.text), work=request.work))
        images = [
            self.encoder.invoke(EncodeInput(media=media), work=work)
            for media, work in zip(request.images, request.image_work, strict=True)
        ]
        return ImageTextVectors(
            embedding=texts[0].embedding if texts else None,
            images=tuple(each.embedding for each in images),
            tokens=(*(each.tokens for each in texts), *(each.tokens for each in images)),
        )
