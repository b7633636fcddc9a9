"""Templates of families: their components and default deployments.

Limits of a family's videos, for gateways and engines: sizes, lengths and steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from omnibus.errors import BadRequest


class VideoLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that all models of a family have in common.

    Sides are multiples of ``side_multiple`` pixels, at least ``min_side``. The number of frames is one more than a
    multiple of ``frame_group``. ``audio_rate`` is the number of audio latents per second, of which a video has at least
    one, or 0 without audio. ``min_fps`` and ``max_fps`` are frames per second, ``min_steps`` and ``max_steps``
    denoising steps.
    """

    side_multiple: int = 1
    min_side: int = 1
    frame_group: int = 1
    min_fps: float = 1.0
    max_fps: float = 120.0
    min_steps: int = 1
    max_steps: int = 1000
    audio_rate: float = 0.0

    def check_frames(self, width: int, height: int, frames: int, fps: float) -> None:
        """Raise ``BadRequest`` with the limits; its ``param`` is the name of the argument."""
        for name, pixels in (("width", width), ("height", height)):
            if pixels % self.side_multiple or pixels < self.min_side:
                raise BadRequest(
                    f"{name} must be a multiple of {self.side_multiple} from {self.min_side} on, not {pixels}; "
                    f"the nearest is {self._nearest_side(pixels)}",
                    param=name,
                )
        if frames < 1 or (frames - 1) % self.frame_group:
            raise BadRequest(
                f"frames must be one more than a multiple of {self.frame_group}, not {frames}", param="frames"
            )
        if not self.min_fps <= fps <= self.max_fps:
            raise BadRequest(f"fps must be {self.min_fps:g} to {self.max_fps:g}, not {fps:g}", param="fps")
        if self.audio_rate and not self.audio_length(frames, fps):
            raise BadRequest(
                f"{frames} frames at {fps:g} per second are too short to have audio; send more seconds, or a lower fps",
                param="frames",
            )

    def check_steps(self, steps: int) -> None:
        """Raise ``BadRequest`` for an unsupported number of denoising steps."""
        if not self.min_steps <= steps <= self.max_steps:
            raise BadRequest(f"steps must be {self.min_steps} to {self.max_steps}, not {steps}", param="steps")

    def audio_length(self, frames: int, fps: float) -> int:
        """Return the number of audio latents for ``frames``."""
        return round(frames / fps * self.audio_rate)

    def _nearest_side(self, pixels: int) -> int:
        least = -(-self.min_side // self.side_multiple) * self.side_multiple
        return max(least, round(pixels / self.side_multiple) * self.side_multiple)


#: LTX-2, by its pipeline and schedule. Checkpoints whose latents are larger than 16 pixels need longer sides.
LTX2 = VideoLimits(
    side_multiple=32,
    min_side=32,
    frame_group=8,
    min_fps=1.0,
    max_fps=120.0,
    min_steps=2,
    max_steps=1000,
    audio_rate=25.0,
)

#: Pipelines of diffusers that have blocks and no family: what most of them share.
MODULAR = VideoLimits(side_multiple=16, min_side=16, frame_group=4)


Options = Mapping[str, Mapping[str, Any]]


class FamilyDeclaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One family, with its common name as ``title``.

    ``components`` are in the order of data flow. ``encoders`` names the component that encodes each modality, ``tasks``
    the kind of unit task of each component. ``options`` and ``paths`` are the usual deployment, and ``more`` are
    further options that can be declared. ``tiny`` is the name of the tiny model. ``weights`` has the prefixes of each
    component's tensor names, of which the longest match counts. Components that share tensors both list them. Families
    that generate videos have ``video_limits``. With ``modalities_by_checkpoint``, the processor of a checkpoint decides
    which of the ``encoders`` its model has. ``audio_window_seconds`` is the window within which the family's audio
    encoder attends, so that audio can be streamed to it. With 0 it attends to the whole audio.
    """

    title: str
    components: Sequence[str]
    tasks: Mapping[str, str]
    options: Options
    paths: Sequence[Mapping[str, Any]]
    tiny: str
    encoders: Mapping[str, str] = {}
    voices: Sequence[str] = ()
    more: Options = {}
    weights: Mapping[str, Sequence[str]] = {}
    composite: str = ""
    engine: str = ""
    video_limits: VideoLimits | None = None
    audio_window_seconds: float = 0.0
    modalities_by_checkpoint: bool = False


def language_model(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """A language model that takes only text."""
    return FamilyDeclaration(
        title=title,
        components=["thinker"],
        tasks={"thinker": "think"},
        options={"L": _deployment_option("llm", "thinker")},
        paths=[{"options": ["L"], "share": 100}],
        tiny=tiny,
        **{"weights": {"thinker": ("model.", "lm_head.")}, **more},
    )


def text_embedder(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """An encoder of texts to vectors."""
    return FamilyDeclaration(
        title=title,
        components=["embedder"],
        tasks={"embedder": "embed"},
        options={"B": _deployment_option("encoder", "embedder")},
        paths=[{"options": ["B"], "share": 100}],
        tiny=tiny,
        **more,
    )


def image_text_embedder(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """Two encoders, of texts and of images, to vectors of one space."""
    return FamilyDeclaration(
        title=title,
        components=["vision", "embedder"],
        encoders={"image": "vision"},
        tasks={"vision": "encode", "embedder": "embed"},
        options={
            "E": _deployment_option("encoder", "vision"),
            "B": _deployment_option("encoder", "embedder"),
            "EB": _deployment_option("encoder", "vision", "embedder"),
        },
        paths=[{"options": ["E", "B"], "share": 80}, {"options": ["EB"], "share": 20}],
        tiny=tiny,
        **more,
    )


def text_reranker(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """A model that scores documents for a query."""
    return FamilyDeclaration(
        title=title,
        components=["reranker"],
        tasks={"reranker": "rerank"},
        options={"R": _deployment_option("encoder", "reranker")},
        paths=[{"options": ["R"], "share": 100}],
        tiny=tiny,
        **more,
    )


def speech_recognizer(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """An audio encoder, and a text decoder that attends to its rows."""
    return FamilyDeclaration(
        title=title,
        components=["audio", "transcriber"],
        encoders={"audio": "audio"},
        tasks={"audio": "encode", "transcriber": "transcribe"},
        options={
            "E": _deployment_option("encoder", "audio"),
            "L": _deployment_option("llm", "transcriber"),
            "EL": _deployment_option("llm", "audio", "transcriber"),
        },
        paths=[{"options": ["E", "L"], "share": 70}, {"options": ["EL"], "share": 30}],
        tiny=tiny,
        **more,
    )


def speech_synthesizer(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """A text-to-speech model, and its vocoder."""
    return FamilyDeclaration(
        title=title,
        components=["speaker", "vocoder"],
        tasks={"speaker": "speak", "vocoder": "synthesize"},
        options={
            "T": _deployment_option("llm", "speaker"),
            "V": _deployment_option("generator", "vocoder"),
            "TV": _deployment_option("llm", "speaker", "vocoder"),
        },
        paths=[{"options": ["T", "V"], "share": 70}, {"options": ["TV"], "share": 30}],
        tiny=tiny,
        **more,
    )


def vision_language(title: str, tiny: str, *modalities: str, encoder: str = "vision", **more: Any) -> FamilyDeclaration:
    """One ``encoder`` of ``modalities`` and a language model."""
    return FamilyDeclaration(
        title=title,
        components=[encoder, "thinker"],
        encoders=dict.fromkeys(modalities, encoder),
        tasks={encoder: "encode", "thinker": "think"},
        options={
            "E": _deployment_option("encoder", encoder),
            "L": _deployment_option("llm", "thinker"),
            "EL": _deployment_option("llm", encoder, "thinker"),
        },
        # The last path has no share: it serves apps that request it, and requests while L is unavailable.
        paths=[
            {"options": ["E", "L"], "share": 70},
            {"options": ["EL"], "share": 30},
            {"options": ["E", "EL"], "share": 0},
        ],
        tiny=tiny,
        **more,
    )


def omni_model(title: str, tiny: str, voices: Sequence[str], **more: Any) -> FamilyDeclaration:
    """Images, videos and audio in, text and speech out."""
    whole = ["vision", "audio", "thinker", "talker", "vocoder"]
    return FamilyDeclaration(
        title=title,
        components=whole,
        encoders={"image": "vision", "video": "vision", "audio": "audio"},
        tasks={"vision": "encode", "audio": "encode", "thinker": "think", "talker": "talk", "vocoder": "vocode"},
        voices=voices,
        options={
            "EV": _deployment_option("encoder", "vision"),
            "EA": _deployment_option("encoder", "audio"),
            "Th": _deployment_option("llm", "thinker"),
            "Ta": _deployment_option("llm", "talker"),
            "V": _deployment_option("generator", "vocoder"),
            "M": _deployment_option("llm", *whole),
        },
        paths=[{"options": ["EV", "EA", "Th", "Ta", "V"], "share": 80}, {"options": ["M"], "share": 20}],
        more={"Ta+V": _deployment_option("llm", "talker", "vocoder")},
        tiny=tiny,
        **more,
    )


def image_generation(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """Text in, images out."""
    whole = ["text_encoder", "dit", "vae"]
    return FamilyDeclaration(
        title=title,
        components=whole,
        tasks={"text_encoder": "text-encode", "dit": "denoise", "vae": "decode-image"},
        options={
            "T": _deployment_option("encoder", "text_encoder"),
            "D": _deployment_option("generator", "dit"),
            "V": _deployment_option("generator", "vae"),
            "TDV": _deployment_option("generator", *whole),
        },
        paths=[{"options": ["T", "D", "V"], "share": 80}, {"options": ["TDV"], "share": 20}],
        tiny=tiny,
        **more,
    )


def image_generation_with_prior(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """Text in, images out, each generated from a rough one."""
    whole = ["text_encoder", "prior", "dit", "vae"]
    return FamilyDeclaration(
        title=title,
        components=whole,
        tasks={"text_encoder": "text-encode", "prior": "prior", "dit": "denoise", "vae": "decode-image"},
        options={
            "T": _deployment_option("encoder", "text_encoder"),
            "Pr": _deployment_option("generator", "prior"),
            "D": _deployment_option("generator", "dit"),
            "V": _deployment_option("generator", "vae"),
            "TPrDV": _deployment_option("generator", *whole),
        },
        paths=[{"options": ["T", "Pr", "D", "V"], "share": 80}, {"options": ["TPrDV"], "share": 20}],
        tiny=tiny,
        **more,
    )


def image_editing(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """An image and text in, images out. The text encoder and the denoiser read the image."""
    whole = ["vision", "text_encoder", "vae_encoder", "dit", "vae"]
    return FamilyDeclaration(
        title=title,
        components=whole,
        tasks={
            "vision": "encode",
            "text_encoder": "text-encode",
            "vae_encoder": "encode",
            "dit": "denoise",
            "vae": "decode-image",
        },
        options={
            "E": _deployment_option("encoder", "vision"),
            "T": _deployment_option("encoder", "text_encoder"),
            "I": _deployment_option("encoder", "vae_encoder"),
            "D": _deployment_option("generator", "dit"),
            "V": _deployment_option("generator", "vae"),
            "M": _deployment_option("generator", *whole),
        },
        paths=[{"options": ["E", "T", "I", "D", "V"], "share": 80}, {"options": ["M"], "share": 20}],
        more={
            "ET": _deployment_option("encoder", "vision", "text_encoder"),
            "IV": _deployment_option("generator", "vae_encoder", "vae"),
        },
        tiny=tiny,
        **more,
    )


def video_generation(title: str, tiny: str, **more: Any) -> FamilyDeclaration:
    """Text, and optionally a first image, in; videos with audio out.

    The first frame's encoder is small and rarely used, so it shares an executor with the text encoder.
    """
    whole = ["text_encoder", "vae_encoder", "dit", "vae", "audio_vae"]
    return FamilyDeclaration(
        title=title,
        components=whole,
        tasks={
            "text_encoder": "text-encode",
            "vae_encoder": "encode-frame",
            "dit": "denoise",
            "vae": "decode-video",
            "audio_vae": "decode-audio",
        },
        options={
            "T": _deployment_option("encoder", "text_encoder", "vae_encoder"),
            "D": _deployment_option("generator", "dit"),
            "V": _deployment_option("generator", "vae"),
            "A": _deployment_option("generator", "audio_vae"),
            "M": _deployment_option("generator", *whole),
        },
        paths=[{"options": ["T", "D", "V", "A"], "share": 80}, {"options": ["M"], "share": 20}],
        more={
            "I": _deployment_option("encoder", "vae_encoder"),
            "VA": _deployment_option("generator", "vae", "audio_vae"),
        },
        tiny=tiny,
        **more,
    )


def image_to_image(title: str, tiny: str, decode: str = "decode-image", **more: Any) -> FamilyDeclaration:
    """Text, and optionally an image to start from, in; images, or videos without audio, out.

    The image's encoder is small and rarely used, so it shares an executor with the text encoder.
    """
    whole = ["text_encoder", "vae_encoder", "dit", "vae"]
    return FamilyDeclaration(
        title=title,
        components=whole,
        tasks={"text_encoder": "text-encode", "vae_encoder": "encode-frame", "dit": "denoise", "vae": decode},
        options={
            "T": _deployment_option("encoder", "text_encoder", "vae_encoder"),
            "D": _deployment_option("generator", "dit"),
            "V": _deployment_option("generator", "vae"),
            "M": _deployment_option("generator", *whole),
        },
        paths=[{"options": ["T", "D", "V"], "share": 80}, {"options": ["M"], "share": 20}],
        more={
            "I": _deployment_option("encoder", "vae_encoder"),
            "IV": _deployment_option("generator", "vae_encoder", "vae"),
        },
        tiny=tiny,
        **more,
    )


def prefill_decode_options() -> dict[str, dict[str, Any]]:
    """Options of a language model that is declared as ``prefill`` and ``decode``."""
    return {
        "P": _deployment_option("llm", "prefill"),
        "D": _deployment_option("llm", "decode"),
        "EP": _deployment_option("llm", "vision", "prefill"),
        "ED": _deployment_option("llm", "vision", "decode"),
        "PD": _deployment_option("llm", "prefill", "decode"),
        "EPD": _deployment_option("llm", "vision", "prefill", "decode"),
    }


def _deployment_option(service: str, *components: str) -> dict[str, Any]:
    return {"components": list(components), "service": service}
