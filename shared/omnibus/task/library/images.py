"""Images made from text and from other images."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from omnibus.task.base import CompositeTask
from omnibus.task.library.diffusion import (
    DecodeImage,
    DecodeInputs,
    Denoise,
    DenoiseInput,
    Preview,
    Prior,
    PriorInput,
    Progress,
    TextEncode,
    TextEncodeInput,
    TextEncodeOutput,
)
from omnibus.task.library.media import Encode, EncodeFrame, EncodeInput, FrameInput, PlacedMedia
from omnibus.task.types import Stream, Tensor, Tensors, Value

#: Pixels of an image without a requested size, and the largest reported load. They are only estimates.
_DEFAULT_PIXELS, _MAX_LOAD = 1024 * 1024, 10_000_000


class DrawInput(BaseModel):
    """Images to generate from a prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Description of the content.
    prompt: str
    #: Content to avoid; used if ``guidance`` is above 1 or the model's default.
    negative_prompt: str = ""
    #: Pixels; 0: the model's default.
    width: int = Field(default=0, ge=0)
    height: int = Field(default=0, ge=0)
    #: Images.
    n: int = Field(default=1, ge=1, le=16)
    #: Denoising steps.
    steps: int = Field(default=20, ge=1)
    #: Factor of the distance from the negative prompt; None is the model's usual one.
    guidance: float | None = None
    #: Seed of the first image; each further one has the next number. None: the invocation's.
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    #: Report each step.
    progress: bool = False
    #: Steps from one preview to the next; 0: none are made.
    previews: int = Field(default=0, ge=0)
    #: Count the prompt's tokens.
    count: bool = False

    @property
    def uses_negative_prompt(self) -> bool:
        """True if the negative prompt has an effect."""
        return self.guidance is None or self.guidance > 1

    @property
    def pixels(self) -> int:
        """Pixels of an image as requested, or the usual number of models."""
        return self.width * self.height or _DEFAULT_PIXELS

    @property
    def work(self) -> int:
        """Tokens of the latents of all steps; a token is 16 x 16 pixels."""
        return max(1, min(_MAX_LOAD, self.pixels // 256 * self.steps))


class ImageOutput(BaseModel):
    """Generated images, and the request's optional outputs."""

    #: Tensors [height, width, 3] uint8.
    images: SkipValidation[Tensors]
    #: Streams of ``Progress``, one for each image.
    progress: SkipValidation[list[Stream[Progress]]] = []
    #: Streams of ``Preview``, one for each image.
    previews: SkipValidation[list[Stream[Preview]]] = []
    #: Tokens of the prompt.
    tokens: SkipValidation[Value[int] | None] = None


class ImageGeneration(CompositeTask[DrawInput, ImageOutput]):
    """Text to image. The prompt is encoded once for all images.

    With a ``prior``, the denoiser follows its draft, which is made for each image.
    """

    #: Reads the prompts.
    text_encoder: TextEncode
    #: Makes latents.
    denoiser: Denoise
    #: Makes pixels of latents.
    decoder: DecodeImage
    #: Drafts each image in tokens, for models that have one.
    prior: Prior | None = None

    def invoke(self, request: DrawInput) -> ImageOutput:
        guide = self.text_encoder.invoke(
            TextEncodeInput(
                prompt=request.prompt, negative_prompt=request.negative_prompt if request.uses_negative_prompt else None
            ),
            work=len(request.prompt) // 4,
        )
        return _generate_images(self.denoiser, self.decoder, request, guide, self.prior)


class EditInput(DrawInput):
    """Images to generate from another one.

    Without ``width`` and ``height``, they have the size of the resized image: about a megapixel, with its aspect ratio.
    """

    #: The image that is edited, as ``EncodeInput.media``.
    image: PlacedMedia

    @property
    def work(self) -> int:
        """Tokens of all steps' latents, including those of the edited image.

        The edited image counts as a megapixel.
        """
        return min(_MAX_LOAD, (self.pixels + _DEFAULT_PIXELS) // 256 * self.steps)


class ImageEdit(CompositeTask[EditInput, ImageOutput]):
    """Image and text to images. Both are encoded once for all results."""

    #: Encodes the image for the text encoder.
    vision: Encode
    #: Reads the prompts, and the embedded image.
    text_encoder: TextEncode
    #: Encodes the image for the denoiser.
    vae_encoder: Encode
    #: Makes latents.
    denoiser: Denoise
    #: Makes pixels of latents.
    decoder: DecodeImage

    def invoke(self, request: EditInput) -> ImageOutput:
        tokens = _DEFAULT_PIXELS // 28**2
        features = self.vision.invoke(EncodeInput(media=request.image), work=tokens)
        guide = self.text_encoder.invoke(
            TextEncodeInput(
                prompt=request.prompt,
                negative_prompt=request.negative_prompt if request.uses_negative_prompt else None,
                items=[features.embedding],
            ),
            work=tokens + len(request.prompt) // 4,
        )
        image = self.vae_encoder.invoke(EncodeInput(media=request.image), work=_DEFAULT_PIXELS // 256).embedding
        return _generate_images(self.denoiser, self.decoder, request, guide, images=[image])


class RedrawInput(DrawInput):
    """Images to generate from a text, and optionally from another image.

    Without ``width`` and ``height``, they have the size of the image, at most about a megapixel.
    """

    #: The image to start from, as ``EncodeInput.media``.
    image: PlacedMedia | None = None
    #: As ``FrameInput.mask``.
    mask: PlacedMedia | None = None
    #: As ``FrameInput.strength``.
    strength: float | None = Field(default=None, ge=0, le=1)


class ImageToImage(CompositeTask[RedrawInput, ImageOutput]):
    """Text, and optionally an image, to images. The text encoder may read the image too."""

    #: Reads the prompts.
    text_encoder: TextEncode
    #: Encodes the image, with the seed of each result.
    frame_encoder: EncodeFrame
    #: Makes latents.
    denoiser: Denoise
    #: Makes pixels of latents.
    decoder: DecodeImage

    def invoke(self, request: RedrawInput) -> ImageOutput:
        images = [self._encode_image(request, place) for place in range(request.n)]
        guide = self.text_encoder.invoke(
            TextEncodeInput(
                prompt=request.prompt,
                negative_prompt=request.negative_prompt if request.uses_negative_prompt else None,
                items=[each for each in images[:1] if each is not None],
            ),
            work=len(request.prompt) // 4,
        )
        return _generate_images(self.denoiser, self.decoder, request, guide, images=images)

    def _encode_image(self, request: RedrawInput, place: int) -> Tensor | None:
        if request.image is None:
            return None
        seed = _image_seed(request, place)
        size = {"width": request.width, "height": request.height}
        frame = FrameInput(media=request.image, **size, seed=seed, mask=request.mask, strength=request.strength)
        return self.frame_encoder.invoke(frame, work=request.pixels // 1024).latents


def _generate_images(
    denoiser: Denoise,
    decoder: DecodeImage,
    request: DrawInput,
    guide: TextEncodeOutput,
    prior: Prior | None = None,
    images: Sequence[Tensor | None] = (None,),
) -> ImageOutput:
    """Generate the images of ``request`` from ``guide``, and from ``images``, one for each or for all."""
    image_latents = [
        denoiser.invoke(
            DenoiseInput(
                embeds=guide.embeds,
                mask=guide.mask,
                image=images[place % len(images)],
                width=request.width,
                height=request.height,
                steps=request.steps,
                guidance=request.guidance,
                seed=_image_seed(request, place),
                every=request.previews or 1,
                prior=None if prior is None else _prior_tokens(prior, request, place),
            ),
            work=request.work,
        )
        for place in range(request.n)
    ]
    return ImageOutput(
        images=[decoder.invoke(DecodeInputs(latents=each.latents)).image for each in image_latents],
        progress=[each.progress for each in image_latents] if request.progress else [],
        previews=[each.preview for each in image_latents] if request.previews else [],
        tokens=guide.tokens if request.count else None,
    )


def _prior_tokens(prior: Prior, request: DrawInput, place: int) -> Tensor:
    """Return the prior's tokens for one image, with its noise's seed."""
    prior_output = prior.invoke(
        PriorInput(prompt=request.prompt, width=request.width, height=request.height, seed=_image_seed(request, place)),
        # A token for 32 x 32 pixels, and those of a small image before them.
        work=request.pixels // 1024 + 256,
    )
    return prior_output.tokens


def _image_seed(request: DrawInput, place: int) -> int | None:
    return None if request.seed is None else request.seed + place


#: Composite tasks that make images. A model gets the one that uses most of its components.
PAINTERS: tuple[type[CompositeTask], ...] = (ImageEdit, ImageToImage, ImageGeneration)
