"""Videos made from text, and optionally from a first image."""

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from omnibus.errors import BadRequest
from omnibus.task.base import CompositeTask
from omnibus.task.library.diffusion import (
    DecodeAudio,
    DecodeInputs,
    DecodeVideo,
    Denoise,
    DenoiseInput,
    Progress,
    TextEncode,
    TextEncodeInput,
)
from omnibus.task.library.media import EncodeFrame, FrameInput, PlacedMedia
from omnibus.task.library.speech import Audio
from omnibus.task.types import Stream, Tensor

#: The largest reported load; it is only an estimate.
_MAX_LOAD = 10_000_000


class VideoInput(BaseModel):
    """Video to generate from a prompt, and optionally from a first image."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Description of the content.
    prompt: str
    #: Content to avoid; used if ``guidance`` is above 1 or the model's default.
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
    #: Seed of the noise; None: the invocation's.
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    #: The image that it begins with, as ``EncodeInput.media``.
    image: PlacedMedia | None = None
    #: Make its sound, where the model makes it.
    sound: bool = False
    #: Report each step.
    progress: bool = True

    @property
    def frames(self) -> int:
        """Number of frames, 8 k + 1 for video VAEs: one frame, then groups of 8."""
        return int(self.seconds * self.fps) // 8 * 8 + 1

    @property
    def uses_negative_prompt(self) -> bool:
        """True if the negative prompt has an effect."""
        return self.guidance is None or self.guidance > 1

    @property
    def work(self) -> int:
        """Tokens of the latents of all steps; a token is 32 x 32 pixels of 8 frames."""
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
    """Text to video, with audio if it has a decoder for that.

    An ``image`` becomes the first frame, which requires a ``frame_encoder``.
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
        video_latents = self.denoiser.invoke(
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
            audio = self.sound.invoke(DecodeInputs(latents=video_latents.sound)).audio
        return VideoOutput(
            frames=self.decoder.invoke(DecodeInputs(latents=video_latents.latents), work=request.frames).frames,
            audio=audio,
            progress=video_latents.progress if request.progress else None,
        )

    def _encode_first_frame(self, request: VideoInput) -> Tensor | None:
        """Return the latents of the video's first image. Raises ``BadRequest`` without an encoder for it."""
        if request.image is None:
            return None
        if self.frame_encoder is None:
            raise BadRequest("this model cannot start a video with an image; leave it out", param="image")
        frame_input = FrameInput(
            media=request.image,
            width=request.width,
            height=request.height,
            frames=request.frames,
            seed=request.seed,
        )
        return self.frame_encoder.invoke(frame_input, work=request.width * request.height // 1024).latents
