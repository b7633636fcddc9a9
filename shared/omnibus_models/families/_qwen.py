"""What the Qwen2.5 families share: a language model without state, a vision tower, prompts."""

import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import Encoded, Layout, Loaded, Prefill, Prepared, Prompt

AXES = 3  # M-RoPE: time, height, width
_ROLES = frozenset({"system", "user", "assistant"})


class Decoder(Loaded):
    """A Qwen2.5 decoder stack: backbone plus head, see ``contract.Decoder``."""

    axes = AXES

    def __init__(self, module: Any, backbone: Any, head: Any, eos: Iterable[int]) -> None:
        super().__init__(module)
        config = backbone.config
        table = module.get_input_embeddings().weight
        self._backbone, self._head = backbone, head
        self._mask_kinds = _mask_kinds(config)
        self.eos = frozenset(eos)
        self.layers: int = config.num_hidden_layers
        self.context: int = config.max_position_embeddings
        self.vocabulary: int = config.vocab_size
        self.width: int = table.shape[1]
        self.device: torch.device = table.device
        self.dtype: torch.dtype = table.dtype

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings: [...] int64 to [..., H]."""
        module: Any = self.module
        embedded: Tensor = module.get_input_embeddings()(ids)
        return embedded

    @torch.no_grad()
    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Tensor | None) -> Tensor:
        """[B, T, H] at ``positions`` [3, B, T] to hidden [B, T, H'], after the final norm."""
        # The library takes a dict as a finished mask and passes it to the layers as it is.
        masks = None if mask is None else dict.fromkeys(self._mask_kinds, mask)
        out = self._backbone(
            inputs_embeds=inputs,
            position_ids=positions,
            attention_mask=masks,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """[B, H'] to float32 [B, V]."""
        scores: Tensor = self._head(hidden).float()
        return scores


class Thinker(Decoder, ABC):
    """A Qwen2.5 language model that takes media embeddings, see ``contract.Thinker``."""

    speaks = False

    def __init__(self, module: Any, checkpoint: Path, modalities: Sequence[str]) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
        super().__init__(module, module.get_decoder(), module.lm_head, _stops(module, self._tokenizer))
        self._template = _chat_template(checkpoint, self._tokenizer)
        self._placeholders = {getattr(module.config, f"{kind}_token_id"): kind for kind in modalities}
        self._control = control_tokens(self._tokenizer, self._placeholders)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> Prompt:
        """Apply the chat template and tokenise; one placeholder per media item stays in ``ids``."""
        if not messages:
            raise errors.BadRequest("messages is empty; send at least one message", param="messages")
        chat = [self._message(message) for message in messages]
        text = self._tokenizer.apply_chat_template(
            chat, chat_template=self._template, tokenize=False, add_generation_prompt=True
        )
        ids = self._tokenizer(text)["input_ids"]
        found = tuple(self._placeholders[token] for token in ids if token in self._placeholders)
        if found != tuple(_media_of(chat)):
            raise errors.BadRequest("this model's chat template does not take media in this place", param="messages")
        return Prompt(tuple(ids), found)

    def words(self, text: str) -> tuple[int, ...]:
        """The ids of ``text`` as it stands."""
        return tuple(self._tokenizer(self._clean(text), add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """Decode ids, control tokens left out."""
        decoded: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return decoded

    @torch.no_grad()
    def assemble(self, prompt: Prompt, media: Sequence[Encoded]) -> Prefill:
        """Put each item's embeddings in the place of its placeholder, in order."""
        layout = self.layout(prompt, media)
        inputs = self.embed(torch.tensor(layout.ids, device=self.device))
        is_media = torch.zeros(len(layout.ids), dtype=torch.bool, device=self.device)
        for item, start in zip(media, layout.starts, strict=True):
            place = slice(start, start + item.embeds.shape[0])
            inputs[place] = item.embeds.to(self.device, self.dtype)
            is_media[place] = True
        return Prefill(inputs, layout.positions.to(self.device), layout.delta, is_media)

    def layout(self, prompt: Prompt, media: Sequence[Encoded]) -> Layout:
        """Each placeholder as often as its item has rows, and positions."""
        _check_items(prompt, media)
        for item in media:
            self._check_item(item)
        ids, starts = self._expand(prompt, media)
        self._check_context(len(ids))
        # Positions are counted in a loop over the media: on the CPU, where that does not wait for a device.
        positions, delta = self._positions(torch.tensor([ids]), media)
        return Layout(ids, starts, positions[:, 0], int(delta))

    def talker_prompt(self, prefill: Prefill, hidden: Tensor, voice: str) -> Tensor:
        """This family has no talker: always ``BadRequest``."""
        raise errors.BadRequest("this model does not speak; ask for text", param="modalities")

    def talker_row(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """This family has no talker: always ``BadRequest``."""
        raise errors.BadRequest("this model does not speak; ask for text", param="modalities")

    @abstractmethod
    def _positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        """[3, 1, T] positions and the delta of decoded tokens. Read from the request, never from the module."""

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise errors.BadRequest(f"unknown role {role!r}; use system, user or assistant", param="messages")
        if isinstance(content, str):
            return {"role": role, "content": self._clean(content)}
        if not isinstance(content, list | tuple) or not content:
            raise errors.BadRequest("content must be text or a list of parts", param="messages")
        return {"role": role, "content": [self._part(part) for part in content]}

    def _part(self, part: Any) -> dict[str, str]:
        kind = str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
        if kind == "text":
            return {"type": "text", "text": self._clean(part.get("text"))}
        if kind not in self._placeholders.values():
            known = ", ".join(["text", *self._placeholders.values()])
            raise errors.BadRequest(f"this model takes no content part of type {kind!r}; use {known}", param="messages")
        return {"type": kind}

    def _clean(self, text: Any) -> str:
        if not isinstance(text, str):
            raise errors.BadRequest("a text part needs a string", param="messages")
        for token in self._control:
            if token in text:
                raise errors.BadRequest(f"the text holds the control token {token!r}; leave it out", param="messages")
        return text

    def _rows(self, meta: Mapping[str, Any]) -> int:
        """How many rows an item with ``meta`` has. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        time, height, width = (operator.index(extent) for extent in meta["grid_thw"])
        if min(time, height, width) < 1 or (meta["modality"] == "image" and time != 1):
            raise ValueError("no such grid")
        if meta["modality"] == "video" and not 0 < float(meta["second_per_grid"]) < math.inf:
            raise ValueError("no such time")
        module: Any = self.module
        merge = module.config.vision_config.spatial_merge_size
        return (height // merge) * (width // merge) * time

    def _check_item(self, item: Encoded) -> None:
        # Positions are counted from the meta data, so a step of the model would fail on what does not agree.
        kind = str(item.meta.get("modality"))
        try:
            rows = self._rows(item.meta)
        except (KeyError, TypeError, ValueError):
            raise errors.BadRequest(f"the meta data of an item of {kind} cannot be used", param="items") from None
        if tuple(item.embeds.shape) != (rows, self.width):
            raise errors.BadRequest(
                f"an item of {kind} must have an embedding of shape {(rows, self.width)} by its meta data, "
                f"not {tuple(item.embeds.shape)}",
                param="items",
            )

    def _expand(self, prompt: Prompt, media: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        counts = iter(item.embeds.shape[0] for item in media)
        ids: list[int] = []
        starts: list[int] = []
        for token in prompt.ids:
            if token in self._placeholders:
                starts.append(len(ids))
                ids += [token] * next(counts)
            else:
                ids.append(token)
        return ids, starts

    def _check_context(self, length: int) -> None:
        # One place must be left for the answer.
        if length >= self.context:
            raise errors.ContextTooLong(f"the prompt has {length} tokens; this model takes {self.context - 1}")


@dataclass
class VisionEncoder(Loaded):
    """Images and videos through one Qwen2.5 vision tower, see ``contract.Encoder``.

    ``images`` and ``videos`` are the library's processors, ``video_options`` what the joint processor
    passes to the latter.
    """

    images: Any
    videos: Any
    video_options: Mapping[str, Any]
    limits: media.Limits

    modalities = frozenset({"image", "video"})

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode and preprocess one file: ``pixels`` [patches, values], ``grid`` [1, 3]."""
        match modality:
            case "image":
                return self._image(data)
            case "video":
                return self._video(data)
        raise errors.BadRequest(f"this encoder takes image and video, not {modality}")

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """One forward pass: attention never crosses a frame, so a batch equals its items one by one."""
        if not batch:
            return []
        module: Any = self.module
        pixels = torch.cat([item.features["pixels"] for item in batch]).to(module.device)
        grids = torch.cat([item.features["grid"] for item in batch]).to(module.device)
        rows = module.get_image_features(pixels, grids, return_dict=True).pooler_output
        return [Encoded(row, item.meta) for row, item in zip(rows, batch, strict=True)]

    def _image(self, data: memoryview) -> Prepared:
        picture = media.image(data, self.limits)
        out = self.images(images=[picture], return_tensors="pt")
        return self._prepared("image", out["pixel_values"], out["image_grid_thw"], {})

    def _video(self, data: memoryview) -> Prepared:
        clip = media.video(data, self.limits)
        out = self.videos(videos=[clip.frames], do_sample_frames=False, return_tensors="pt", **self.video_options)
        seconds = self.videos.temporal_patch_size / clip.fps
        return self._prepared("video", out["pixel_values_videos"], out["video_grid_thw"], {"second_per_grid": seconds})

    def _prepared(self, modality: str, pixels: Tensor, grid: Tensor, more: Mapping[str, Any]) -> Prepared:
        count = int(grid.prod()) // self.images.merge_size**2
        meta = {"modality": modality, "n_tokens": count, "grid_thw": grid[0].tolist(), **more}
        return Prepared(modality, {"pixels": pixels, "grid": grid}, meta)


def vision_encoder(
    module: Any, checkpoint: Path, limits: media.Limits, video_options: Mapping[str, Any]
) -> VisionEncoder:
    """A vision encoder with the checkpoint's own processors."""
    from transformers import AutoImageProcessor, AutoVideoProcessor

    images = AutoImageProcessor.from_pretrained(checkpoint, local_files_only=True)
    videos = AutoVideoProcessor.from_pretrained(checkpoint, local_files_only=True)
    return VisionEncoder(module, images, videos, video_options, limits)


def grids(media: Sequence[Encoded], modality: str) -> Tensor | None:
    """[n, 3] grids of the items of one modality, or None without any."""
    found = [item.meta["grid_thw"] for item in media if item.meta["modality"] == modality]
    return torch.tensor(found) if found else None


def seconds_per_grid(media: Sequence[Encoded]) -> Tensor | None:
    """Float32 [n]: seconds between temporal patches of each video. The joint processor's precision matters."""
    found = [item.meta["second_per_grid"] for item in media if item.meta["modality"] == "video"]
    return torch.tensor(found, dtype=torch.float32) if found else None


def _check_items(prompt: Prompt, media: Sequence[Encoded]) -> None:
    given = tuple(str(item.meta.get("modality")) for item in media)
    if given != prompt.modalities:
        wanted = ", ".join(prompt.modalities) or "none"
        raise errors.BadRequest(f"the messages name these media: {wanted}; got: {', '.join(given) or 'none'}")


def _media_of(chat: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for message in chat:
        if not isinstance(message["content"], str):
            yield from (part["type"] for part in message["content"] if part["type"] != "text")


def _mask_kinds(config: Any) -> tuple[str, ...]:
    kinds = tuple(sorted(set(config.layer_types)))
    if kinds != ("full_attention",):
        raise errors.Fatal(f"layers with {', '.join(kinds)} cannot be served; only full attention is supported")
    return kinds


def _stops(module: Any, tokenizer: Any) -> set[int]:
    configured = module.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    return {int(token) for token in listed if token is not None}


def control_tokens(tokenizer: Any, placeholders: Iterable[int]) -> tuple[str, ...]:
    """What text from users may not hold: special tokens, and the ``placeholders`` of media."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted(added | {tokenizer.convert_ids_to_tokens(token) for token in placeholders}))


def _chat_template(checkpoint: Path, tokenizer: Any) -> str:
    """The processor's template, which knows media; older checkpoints keep it in chat_template.json."""
    plain, old = Path(checkpoint) / "chat_template.jinja", Path(checkpoint) / "chat_template.json"
    if plain.exists():
        return plain.read_text()
    template = json.loads(old.read_text())["chat_template"] if old.exists() else tokenizer.chat_template
    if not template:
        raise errors.Fatal(f"{checkpoint} has no chat template")
    return str(template)
