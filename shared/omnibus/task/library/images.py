"""Pictures and videos, made from text and from other pictures."""

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from omnibus.errors import BadRequest
from omnibus.task.base import CompositeTask
from omnibus.task.library.diffusion import (
    DecodeAudio,
    DecodeImage,
    DecodeInputs,
    DecodeVideo,
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
from omnibus.task.library.speech import Audio
from omnibus.task.types import Stream, Tensor, Tensors, Value

#: Pixels of a picture whose size is left to others, and the largest load that is told: estimates, whatever a client
#: asks for.
_DEFAULT_PIXELS, _MAX_LOAD = 1024 * 1024, 10_000_000


class DrawInput(BaseModel):
    """Images to be made of a prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: What is to be seen, in words.
    prompt: str
    #: What is not; it counts where ``guidance`` is above 1 or left to the model.
    negative_prompt: str = ""
    #: Pixels; 0: the model's usual ones.
    width: int = Field(default=0, ge=0)
    height: int = Field(default=0, ge=0)
    #: Images.
    n: int = Field(default=1, ge=1, le=16)
    #: Denoising steps.
    steps: int = Field(default=20, ge=1)
    #: Factor of the distance from the negative prompt; None is the model's usual one.
    guidance: float | None = None
    #: Of the first image; each further one has the next number. None is the invocation's own.
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    #: Report each step.
    progress: bool = False
    #: Steps from one preview to the next; 0: none are made.
    previews: int = Field(default=0, ge=0)
    #: Count the prompt's tokens.
    count: bool = False

    @property
    def uses_negative_prompt(self) -> bool:
        """True if the negative prompt counts."""
        return self.guidance is None or self.guidance > 1

    @property
    def pixels(self) -> int:
        """Pixels of the picture as requested, else about as many as models usually make."""
        return self.width * self.height or _DEFAULT_PIXELS

    @property
    def work(self) -> int:
        """Tokens of the latents of all steps: 16 x 16 pixels are one."""
        return max(1, min(_MAX_LOAD, self.pixels // 256 * self.steps))


class ImageOutput(BaseModel):
    """Images that were made, and what else the request asks for."""

    #: Tensors [height, width, 3] uint8.
    images: SkipValidation[Tensors]
    #: Streams of ``Progress``, one for each image.
    progress: SkipValidation[list[Stream[Progress]]] = []
    #: Streams of ``Preview``, one for each image.
    previews: SkipValidation[list[Stream[Preview]]] = []
    #: Tokens of the prompt.
    tokens: SkipValidation[Value[int] | None] = None


class ImageGeneration(CompositeTask[DrawInput, ImageOutput]):
    """Text to picture. The prompt is encoded once, however many pictures are made of it.

    Where there is a ``prior``, the denoiser follows what that one draws, for each picture anew.
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
    """Images to be made of another one.

    Without ``width`` and ``height`` they are as large as that one is brought to: about a megapixel, in its proportions.
    """

    #: The image that is edited, as ``EncodeInput.media``.
    image: PlacedMedia

    @property
    def work(self) -> int:
        """Tokens of the latents of all steps, with those of the edited picture, which has a megapixel."""
        return min(_MAX_LOAD, (self.pixels + _DEFAULT_PIXELS) // 256 * self.steps)


class ImageEdit(CompositeTask[EditInput, ImageOutput]):
    """A picture and text to pictures. Both are encoded once, however many are made of them."""

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
        seen = self.vision.invoke(EncodeInput(media=request.image), work=tokens)
        guide = self.text_encoder.invoke(
            TextEncodeInput(
                prompt=request.prompt,
                negative_prompt=request.negative_prompt if request.uses_negative_prompt else None,
                items=[seen.embedding],
            ),
            work=tokens + len(request.prompt) // 4,
        )
        image = self.vae_encoder.invoke(EncodeInput(media=request.image), work=_DEFAULT_PIXELS // 256).embedding
        return _generate_images(self.denoiser, self.decoder, request, guide, image=image)


def _generate_images(
    denoiser: Denoise,
    decoder: DecodeImage,
    request: DrawInput,
    guide: TextEncodeOutput,
    prior: Prior | None = None,
    image: Tensor | None = None,
) -> ImageOutput:
    """The pictures of ``request``, made of ``guide``, and of the latents of ``image`` where there is one."""
    made = [
        denoiser.invoke(
            DenoiseInput(
                embeds=guide.embeds,
                mask=guide.mask,
                image=image,
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
        images=[decoder.invoke(DecodeInputs(latents=each.latents)).image for each in made],
        progress=[each.progress for each in made] if request.progress else [],
        previews=[each.preview for each in made] if request.previews else [],
        tokens=guide.tokens if request.count else None,
    )


def _prior_tokens(prior: Prior, request: DrawInput, place: int) -> Tensor:
    """The tokens of one picture's prior, from the same seed as its noise."""
    drawn = prior.invoke(
        PriorInput(prompt=request.prompt, width=request.width, height=request.height, seed=_image_seed(request, place)),
        # A token for 32 x 32 pixels, and those of a small picture before them.
        work=request.pixels // 1024 + 256,
    )
    return drawn.tokens


def _image_seed(request: DrawInput, place: int) -> int | None:
    return None if request.seed is None else request.seed + place


#: What makes pictures, whatever a model's components are: the one of these that uses most of them.
PAINTERS: tuple[type[CompositeTask], ...] = (ImageEdit, ImageGeneration)


class VideoInput(BaseModel):
    """A video to be made of a prompt, and of an image that it begins with, where there is one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: What is to be seen, in words.
    prompt: str
    #: What is not; it counts where ``guidance`` is above 1 or left to the model.
    negative_prompt: str = ""
    #: Pixels.
    width: int = Field(default=768, ge=1)
    height: int = Field(default=512, ge=1)
    #: Length in seconds.
    seconds: float = Field(default=4.0, ge=0, le=3600)
    #: Frames per second.
    fps: float = Field(default=24.0, gt=0, le=1000)
    #: Denoising steps.
    steps: int = Field(default=30, ge=1)
    #: Factor of the distance from the negative prompt; None is the model's usual one.
    guidance: float | None = None
    #: Of the noise. None is the invocation's own.
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    #: The image that it begins with, as ``EncodeInput.media``.
    image: PlacedMedia | None = None
    #: Make its sound, where the model makes it.
    sound: bool = False
    #: Report each step.
    progress: bool = True

    @property
    def frames(self) -> int:
        """8 k + 1, as video VAEs have it: one frame, then groups of 8."""
        return int(self.seconds * self.fps) // 8 * 8 + 1

    @property
    def uses_negative_prompt(self) -> bool:
        """True if the negative prompt counts."""
        return self.guidance is None or self.guidance > 1

    @property
    def work(self) -> int:
        """Tokens of the latents of all steps: 32 x 32 pixels of 8 frames are one."""
        return max(1, min(_MAX_LOAD, self.width * self.height * self.frames // 8192 * self.steps))


class VideoOutput(BaseModel):
    """Streams of a video."""

    #: Stream of tensors [frames, height, width, 3] uint8, in order.
    frames: SkipValidation[Stream[Tensor]]
    #: Stream of ``Audio``, where the request asks for sound.
    audio: SkipValidation[Stream[Audio] | None] = None
    #: Stream of ``Progress``, where the request asks for it.
    progress: SkipValidation[Stream[Progress] | None] = None


class VideoGeneration(CompositeTask[VideoInput, VideoOutput]):
    """Text to video, with its sound where a decoder for it is given.

    An ``image`` is the first frame where there is a ``frame_encoder``, and refused where there is none.
    """

    #: Reads the prompts.
    text_encoder: TextEncode
    #: Makes latents, of images and of sound.
    denoiser: Denoise
    #: Makes frames of latents.
    decoder: DecodeVideo
    #: Makes samples of latents, for models with sound.
    sound: DecodeAudio | None = None
    #: Makes latents of an image, for models that begin a video with one.
    frame_encoder: EncodeFrame | None = None

    def invoke(self, request: VideoInput) -> VideoOutput:
        guide = self.text_encoder.invoke(
            TextEncodeInput(
                prompt=request.prompt, negative_prompt=request.negative_prompt if request.uses_negative_prompt else None
            ),
            work=len(request.prompt) // 4,
        )
        made = self.denoiser.invoke(
            DenoiseInput(
                embeds=guide.embeds,
                mask=guide.mask,
                width=request.width,
                height=request.height,
                frames=request.frames,
                fps=request.fps,
                steps=request.steps,
                guidance=request.guidance,
                seed=request.seed,
                image=self._encode_first_frame(request),
            ),
            work=request.work,
        )
        audio = None
        if request.sound and self.sound is not None:
            audio = self.sound.invoke(DecodeInputs(latents=made.sound)).audio
        return VideoOutput(
            frames=self.decoder.invoke(DecodeInputs(latents=made.latents), work=request.frames).frames,
            audio=audio,
            progress=made.progress if request.progress else None,
        )

    def _encode_first_frame(self, request: VideoInput) -> Tensor | None:
        """Latents of the image that the video begins with. Raises ``BadRequest`` where no component encodes it."""
        if request.image is None:
            return None
        if self.frame_encoder is None:
            raise BadRequest("this model begins no video with an image: leave it out", param="image")
        given = FrameInput(media=request.image, width=request.width, height=request.height)
        return self.frame_encoder.invoke(given, work=request.width * request.height // 1024).latents
