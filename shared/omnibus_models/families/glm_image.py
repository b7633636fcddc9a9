"""GLM-Image: a prior generates a rough image by tokens, and a diffusion transformer follows it.

``GlmImagePipeline`` has a glyph encoder for text in the image (byT5), the prior (``vision_language_encoder``), the
transformer and the decoder of a VAE.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import loading
from omnibus_models.contract import Encoded, ImageSpec, LoadedComponent, Prepared, no_component
from omnibus_models.families import _language
from omnibus_models.families._glm_decoder import load_decoder
from omnibus_models.families._glm_denoiser import GlmDenoiser, check_sides
from omnibus_models.families._image_tokens import TokenDenoiser, TokenDenoising

#: Most tokens of a text to write in the image. The pipeline silently truncates texts.
MAX_TEXT_TOKENS = 2048
#: Text to write in the image, by the pipeline's kinds of quotation marks, in its order.
_QUOTED = tuple(map(re.compile, (r"'([^']*)'", "\u201c([^\u201c\u201d]*)\u201d", r'"([^"]*)"', "「([^「」]*)」")))
#: Pixels on a side of one token of the prior, which is four tokens of the transformer.
TOKEN_SIDE_PIXELS = 32


@dataclass
class GlmTextEncoder(LoadedComponent):
    """Texts to write in an image, to hidden states of byT5.

    See ``contract.TextEncoder``.
    """

    tokenizer: Any

    twins = True

    def __post_init__(self) -> None:
        # This tokenizer does not mark all its special tokens as special.
        self._control = {*_language.control_tokens(self.tokenizer, ()), *self.tokenizer.all_special_tokens}

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Tokenise the texts in quotation marks, one row each: ``ids`` [texts, T], ``mask`` [texts, T]."""
        if items:
            raise errors.BadRequest("this encoder reads only text, no images", param="items")
        texts = [text for marks in _QUOTED for text in marks.findall(prompt)]
        for token in self._control:
            if any(token in text for text in texts):
                raise errors.BadRequest(f"a text in the prompt holds the control token {token!r}", param="prompt")
        rows: list[list[int]] = self.tokenizer(texts or [""])["input_ids"]
        longest = max(map(len, rows))
        if longest > MAX_TEXT_TOKENS:
            raise errors.ContextTooLong(
                f"a text in the prompt has {longest} tokens; this model takes {MAX_TEXT_TOKENS}"
            )
        # The pipeline pads each text in front if there is an even number of them.
        rows = [[self.tokenizer.pad_token_id] * ((len(rows) + 1) % 2) + row for row in rows]
        ids = [torch.tensor(row) for row in rows]
        features = {
            "ids": _pad_rows(ids, self.tokenizer.pad_token_id),
            "mask": _pad_rows([torch.ones(len(row)) for row in ids]),
        }
        return Prepared("text", features, {"modality": "text", "n_tokens": sum(map(len, rows))})

    def prepare_negative(self, prompt: str, negative: str) -> Prepared:
        """Prepare a prompt without text. Raises ``BadRequest`` unless ``negative`` is blank."""
        if negative.strip():
            raise errors.BadRequest(
                "this model does not support negative prompts; leave it out", param="negative_prompt"
            )
        return self.prepare("")

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass over all texts of all prompts; a prompt's texts are concatenated, [T, W]."""
        if not batch:
            return []
        module: Any = self.module
        ids = _pad_rows([row for item in batch for row in item.features["ids"]], self.tokenizer.pad_token_id)
        mask = _pad_rows([row for item in batch for row in item.features["mask"]]).to(module.device)
        hidden = module(ids.to(module.device), attention_mask=mask).last_hidden_state
        counts = [len(item.features["ids"]) for item in batch]
        masked_rows = zip(hidden.split(counts), mask.bool().split(counts), strict=True)
        return [Encoded(rows[row_mask], item.meta) for (rows, row_mask), item in zip(masked_rows, batch, strict=True)]


class GlmPrior(TokenDenoiser):
    """The language model that generates a small image, then the requested one.

    See ``contract.PriorModel``.
    """

    axes = 3

    def __init__(self, module: Any, processor: Any) -> None:
        super().__init__(module, module.model.language_model, module.config.vq_config.num_embeddings)
        self._processor = processor
        self._control = _language.control_tokens(processor.tokenizer, ())
        self._context: int = module.config.text_config.max_position_embeddings

    @torch.no_grad()
    def open(self, picture: ImageSpec, prompt: str) -> TokenDenoising:
        """Read the prompt, see ``contract.PriorModel``."""
        check_sides(picture, TOKEN_SIDE_PIXELS)
        for token in self._control:
            if token in prompt:
                raise errors.BadRequest(f"the prompt holds the control token {token!r}; leave it out", param="prompt")
        ids, grids = self._encode_prompt(picture, prompt)
        if min(min(grid) for grid in grids) < 1:
            raise errors.BadRequest("one side of the image is too long for the other one", param="width")
        positions = _image_positions(ids.shape[1], grids[::-1])
        if ids.shape[1] + positions.shape[1] > self._context:
            raise errors.ContextTooLong(
                f"prompt and image have {ids.shape[1] + positions.shape[1]} tokens; this model takes {self._context}",
                param="prompt",
            )
        module: Any = self.module
        return self._start_denoising(
            module.get_input_embeddings()(ids.to(self._device)),
            positions,
            grid=grids[0],
            generator=torch.Generator().manual_seed(picture.seed),
        )

    def latents(self, denoising: TokenDenoising) -> Tensor:
        """Return the tokens [1, 1, rows, columns] of the image, float32 on the CPU.

        Those of the small image are left out.
        """
        rows, columns = denoising.grid
        return torch.tensor(denoising.chosen[-rows * columns :], dtype=torch.float32).view(1, 1, rows, columns)

    def _encode_prompt(self, picture: ImageSpec, prompt: str) -> tuple[Tensor, list[tuple[int, int]]]:
        """Return ids [1, T], and the grids of both images."""
        messages = [[{"role": "user", "content": [{"type": "text", "text": prompt}]}]]
        inputs = self._processor.apply_chat_template(
            messages,
            tokenize=True,
            target_h=picture.height,
            target_w=picture.width,
            return_dict=True,
            return_tensors="pt",
        )
        return inputs["input_ids"], [(rows, columns) for _, rows, columns in inputs["image_grid_thw"].tolist()]

    def _embed_tokens(self, tokens: Tensor) -> Tensor:
        module: Any = self.module
        embeddings: Tensor = module.get_input_embeddings()(tokens)
        return embeddings

    def _token_scores(self, hidden: Tensor) -> Tensor:
        module: Any = self.module
        scores: Tensor = module.lm_head(hidden)
        return scores


class GlmImage:
    """See ``contract.ModelFamily``."""

    name = "glm_image"
    components = ("text_encoder", "prior", "dit", "vae")

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load one component alone, of the VAE its decoder."""
        checkpoint = Path(checkpoint)
        match component:
            case "text_encoder":
                return _text_encoder(checkpoint, device, dtype)
            case "prior":
                return _load_prior(checkpoint, device, dtype)
            case "dit":
                return _load_denoiser(checkpoint, device, dtype)
            case "vae":
                return load_decoder(checkpoint, device, dtype)
        raise no_component(self.name, self.components, component)


def _text_encoder(checkpoint: Path, device: str, dtype: str) -> GlmTextEncoder:
    from transformers import AutoTokenizer, T5EncoderModel

    module = loading.load_model(T5EncoderModel, checkpoint / "text_encoder", device=device, dtype=dtype)
    return GlmTextEncoder(module, AutoTokenizer.from_pretrained(checkpoint / "tokenizer", local_files_only=True))


def _load_prior(checkpoint: Path, device: str, dtype: str) -> GlmPrior:
    from transformers import GlmImageForConditionalGeneration, GlmImageProcessor

    part = checkpoint / "vision_language_encoder"
    drop = ["model.visual", "model.vqmodel"]
    module = loading.load_model(GlmImageForConditionalGeneration, part, drop=drop, device=device, dtype=dtype)
    return GlmPrior(module, GlmImageProcessor.from_pretrained(checkpoint / "processor", local_files_only=True))


def _load_denoiser(checkpoint: Path, device: str, dtype: str) -> GlmDenoiser:
    # Import the pipeline, which has a function for each image, before a request waits for it.
    from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel  # noqa: F401

    from omnibus_models import diffusers_loading

    module = diffusers_loading.load_model(
        GlmImageTransformer2DModel, checkpoint, "transformer", device=device, dtype=dtype
    )
    try:
        scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(checkpoint, subfolder="scheduler")
        # The VAE's scale is in its configuration; its weights are not needed.
        halvings = len(json.loads((checkpoint / "vae" / "config.json").read_text())["block_out_channels"]) - 1
    except (OSError, ValueError, KeyError) as error:
        raise errors.Fatal(f"{checkpoint} lacks the configuration of its scheduler or VAE: {error}") from error
    if scheduler.config.stochastic_sampling:
        raise errors.Fatal(f"{checkpoint} samples with noise in every step, which this family does not serve")
    return GlmDenoiser(module, checkpoint, scheduler, 2**halvings)


def _image_positions(begin: int, grids: Sequence[tuple[int, int]]) -> Tensor:
    """Return [3, tokens] of consecutive images after a prompt of ``begin`` tokens.

    The axes are time, rows and columns.
    """
    positions = []
    for rows, columns in grids:
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        positions.append(torch.cat([torch.full((len(places), 1), 0), places], 1) + begin)
        begin += max(rows, columns)
    return torch.cat(positions).T


def _pad_rows(rows: Sequence[Tensor], value: float = 0) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


FAMILY = GlmImage()
