"""Components of modular pipelines, see ``contract.diffusion``: their blocks between packed values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import NO_CHANGE, Encoded, ImageChange, ImageSpec, LoadedComponent, Prepared
from omnibus_models.modular.blocks import BlockRun, ModularPart
from omnibus_models.modular.values import pack_values, unpack_values

_DEFAULT_SIDE = 1024
#: Names of a pipeline's pixels per latent, on either side; a position of the transformer has two latents.
_SCALES = ("vae_scale_factor", "vae_scale_factor_spatial", "vae_spatial_compression_ratio")
#: Names of a pipeline's outputs: images or videos.
OUTPUTS = ("images", "videos")
#: Names of the input for frames per second.
_RATES = ("frame_rate", "fps")
#: Name in packed values of the image itself, for blocks that read it with the prompt.
_SOURCE = "source image"


def side_multiple(pipeline: Any) -> int:
    """Return a number of pixels, of which sides of images are multiples."""
    return 2 * min((getattr(pipeline, name) for name in _SCALES if hasattr(pipeline, name)), default=8)


class _PartComponent(LoadedComponent):
    def __init__(self, part: ModularPart) -> None:
        super().__init__(part.module)
        self._part = part
        self.inputs = part.inputs


class ModularTextEncoder(_PartComponent):
    """The blocks that read the prompt. A prompt and its negative prompt are encoded together."""

    films = True
    joins = True

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Check the prompt. The blocks tokenise it with the other inputs.

        ``items`` are what the encoder of an image returned; blocks that read only text ignore it.
        """
        return self._prepare_prompts({"prompt": prompt}, items)

    def prepare_negative(self, prompt: str, negative: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Check both prompts, which become one packed value."""
        return self._prepare_prompts({"prompt": prompt, "negative_prompt": negative}, items)

    def _prepare_prompts(self, prompts: dict[str, str], items: Sequence[Encoded]) -> Prepared:
        if prompts.get("negative_prompt") and "negative_prompt" not in self.inputs:
            raise errors.BadRequest("this model takes no negative prompt; leave it out", param="negative_prompt")
        count = max(map(self._count_tokens, prompts.values()))
        limit = getattr(self.inputs.get("max_sequence_length"), "default", None)
        if limit is not None and count > limit:
            raise errors.ContextTooLong(f"the prompt has {count} tokens; this model takes {limit}", param="prompt")
        features = {"image": items[0].embeds} if items else {}
        meta = {"modality": "text", "n_tokens": self._count_tokens(prompts["prompt"]), **prompts}
        return Prepared("text", features, meta)

    def _count_tokens(self, text: str) -> int:
        tokenizer = getattr(self._part.pipeline, "tokenizer", None)
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # some have a processor in its place
        return 1 if tokenizer is None else len(tokenizer(text)["input_ids"])

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Encode one request after another: packed values, uint8 [1, n]."""
        return [Encoded(self._encode_one(item), item.meta) for item in batch]

    def _encode_one(self, item: Prepared) -> Tensor:
        prompts = {name: item.meta[name] for name in ("prompt", "negative_prompt") if name in item.meta}
        images = {name: unpack_values(packed, "cpu").get(_SOURCE) for name, packed in item.features.items()}
        pipeline = self._part.copy_pipeline()
        guider = getattr(pipeline, "guider", None)
        if guider is not None and "negative_prompt" not in prompts:
            guider.disable()
        state = self._part.open_state({**prompts, **images})
        return self._part.pack_state(self._part.run_blocks(state, pipeline))


class ModularImageEncoder(_PartComponent):
    """The blocks that read an image, see ``contract.FrameEncoder``.

    They may draw noise: what they return has the state of the generator, which the denoiser continues with.
    """

    edits = True
    unit = 1

    def __init__(self, part: ModularPart, limits: media.MediaDecodeLimits = media.DEFAULT) -> None:
        super().__init__(part)
        self._limits = limits

    def prepare(self, data: memoryview, picture: ImageSpec, change: ImageChange = NO_CHANGE) -> Tensor:
        """Decode one file, and the mask of ``change``: packed values."""
        image = media.decode_image(data, self._limits).convert("RGB")
        mask = None if change.mask is None else media.decode_mask(change.mask, self._limits)
        if mask is not None and mask.size != image.size:
            sizes = f"{mask.width}x{mask.height}, and the image {image.width}x{image.height}"
            raise errors.BadRequest(f"the mask has {sizes}: make both of one size", param="mask")
        return self.pack_image(image, picture, mask, change.strength)

    def pack_image(
        self, image: Image.Image, picture: ImageSpec, mask: Image.Image | None = None, strength: float | None = None
    ) -> Tensor:
        """Return ``image`` with the size of ``picture``.

        If that is 0, the image has its own size, or about a megapixel if it is larger. White pixels of ``mask`` are to
        be changed.
        """
        if "image" not in self.inputs or not self._part.names:
            raise errors.BadRequest("this model generates images from text alone; remove the image", param="image")
        changes = {"mask_image": ("mask", mask), "strength": ("strength", strength)}
        changes = {name: each for name, each in changes.items() if each[1] is not None}
        for name, (param, _) in changes.items():
            if name not in self.inputs:
                raise errors.BadRequest(f"this model takes no {param}; leave it out", param=param)
        scale = min(1.0, math.sqrt(_DEFAULT_SIDE**2 / (image.width * image.height)))
        multiple = side_multiple(self._part.pipeline)
        width, height = (max(multiple, round(side * scale / multiple) * multiple) for side in image.size)
        values = {"width": picture.width or width, "height": picture.height or height, "num_frames": picture.frames}
        given = {name: value for name, (_, value) in changes.items()}
        return pack_values({"image": image, "seed": picture.seed, **values, **given})

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode what ``prepare`` returned: packed values, uint8 [1, 1, 1, n]."""
        values = unpack_values(pixels, "cpu")
        generator = torch.Generator().manual_seed(values["seed"])
        size = {name: values[name] for name in ("width", "height")}
        with torch.inference_mode():
            state = self._part.open_state({**values, "generator": generator})
            state = self._part.run_blocks(state, self._part.copy_pipeline())
        source = {_SOURCE: values["image"]} if self._part.prompt_reads_image else {}
        return self._part.pack_state(state, **size, **source, generator=generator.get_state())[None, None]


class ModularDenoising:
    """One image or video in progress, see ``contract.Denoising``. It shares no step with others."""

    rows = 1

    def __init__(self, run: BlockRun) -> None:
        self.run = run
        self._has_loop = run.resume_loop()
        self.steps = max(1, run.steps) if self._has_loop else 1
        self.done = 0
        self.shape = object()  # of no other image
        latents = run.state.get("latents")
        self.tokens = max(1, latents[0].numel() // 64) if isinstance(latents, Tensor) else 1

    def take_step(self) -> None:
        """Take one step; after the last one also run the blocks that follow the loop."""
        self.done += 1
        while self.run.resume_loop() and self.done == self.steps:
            pass


class ModularDenoiser(_PartComponent):
    """The denoising blocks, see ``contract.Denoiser``. Each request has a schedule and guidance of its own."""

    edits = True

    def image_size(self, image: Tensor) -> tuple[int, int]:
        """Return the size that the encoder of the image chose."""
        values = unpack_values(image, "cpu")
        return int(values["width"]), int(values["height"])

    @property
    def default_size(self) -> tuple[int, int]:
        """Width and height of an image by default: the pipeline's."""
        return self._default_side("width"), self._default_side("height")

    def _default_side(self, name: str) -> int:
        side = getattr(self._part.pipeline, f"default_{name}", None) or self.inputs[name].default
        return int(side or _DEFAULT_SIDE)

    def open(self, picture: ImageSpec, guides: Sequence[Tensor], image: Tensor | None = None) -> ModularDenoising:
        """Run the blocks before the first step. Raises ``BadRequest`` for values that they reject.

        Blocks round sizes without a message, so that sides must be multiples of ``side_multiple``.
        """
        multiple = side_multiple(self._part.pipeline)
        for name, side in (("width", picture.width), ("height", picture.height)):
            if side % multiple:
                raise errors.BadRequest(f"{name} must be a multiple of {multiple}, not {side}", param=name)
        part, pipeline = self._part, self._part.copy_pipeline()
        values = {
            "width": picture.width,
            "height": picture.height,
            "num_frames": picture.frames,
            "num_inference_steps": picture.steps,
            "generator": torch.Generator().manual_seed(picture.seed),
            **dict.fromkeys(_RATES, picture.fps),
        }
        if picture.guidance is not None:
            values |= self._set_guidance(pipeline, picture.guidance)
        with torch.inference_mode():
            packed = guides if image is None else [*guides, image]
            return ModularDenoising(BlockRun(part, part.open_state(values, packed), pipeline))

    def _set_guidance(self, pipeline: Any, guidance: float) -> dict[str, float]:
        """Set the guidance of ``pipeline``, or return the input for it."""
        if "guidance_scale" in self.inputs:
            return {"guidance_scale": guidance}
        if getattr(pipeline, "guider", None) is None:
            raise errors.BadRequest("this model has no guidance; leave it out", param="guidance")
        pipeline.guider = pipeline.guider.new(guidance_scale=guidance)
        return {}

    def step(self, batch: Sequence[ModularDenoising]) -> None:
        """Take one step of each."""
        with torch.inference_mode():
            for each in batch:
                each.take_step()

    def palette(self) -> Tensor:
        """Raise ``BadRequest``: the form of latents differs from pipeline to pipeline."""
        raise errors.BadRequest("this model makes no previews; set partial_images to 0", param="partial_images")

    def latents(self, denoising: ModularDenoising) -> Tensor:
        """Return the values for the decoder, packed as uint8 [1, 1, 1, n]."""
        return self._part.pack_state(denoising.run.state)[None, None]


class ModularDecoder(_PartComponent):
    """The blocks after denoising, see ``contract.ImageDecoder`` and ``contract.VideoDecoder``."""

    @torch.inference_mode()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode packed values to an image or to frames.

        An image is uint8 [H, W, 3], and frames are uint8 [frames, H, W, 3].
        """
        part = self._part
        state = part.open_state({"output_type": output_type(part.pipeline)}, [latents])
        state = part.run_blocks(state, part.copy_pipeline())
        output = next(value for name in OUTPUTS if (value := state.get(name)) is not None)
        return torch.from_numpy(to_bytes(output[0]))


def output_type(pipeline: Any) -> str:
    """Return the form of a decoder's output: arrays of videos, and images, into which some pipelines paste the mask."""
    return "np" if "videos" in pipeline.blocks.output_names else "pil"


def to_bytes(picture: Any) -> np.ndarray:
    """Return an image or frames, in [0, 1] or as images, as uint8 [..., H, W, 3]; the library rounds alike."""
    if isinstance(picture, list):
        return np.stack([to_bytes(each) for each in picture])
    array = np.array(picture)
    return array if array.dtype == np.uint8 else (array * 255).round().astype(np.uint8)
