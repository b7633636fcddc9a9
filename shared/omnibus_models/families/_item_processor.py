"""A checkpoint's own processor, applied to one media item at a time.

It decides what an encoder gets for an item, and the tokens that replace the item's placeholder in a prompt.
"""

import copy
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import Encoded, Prepared
from omnibus_models.frame_sampling import FrameSampling
from omnibus_models.limits import MAX_ASPECT_RATIO

#: The argument of a processor for each modality, and its parts that process it.
_ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}
_PARTS = {
    "image": ("image_processor",),
    "video": ("video_processor",),
    "audio": ("feature_extractor", "audio_processor"),
}
#: Fewer equal tokens are not the rows of an item.
_FEWEST_COPIES = 16
#: Stands for a medium in the text of a trial.
MEDIUM = "[MEDIUM]"
#: Places of the frames that the processors of single types take.
_FRAME_PLACES = {"InternVL": "middles", "LlavaOnevision": "starts"}
#: Most numbers of a tensor that goes to the language model as well, such as the grid of an image.
_MAX_NUMBERS = 256
#: Length of a cropped line in short sides: far more than a resampling filter reads beyond the square.
_CROPPED_SIDES = 16
#: Times of frames are passed to a processor as numbers of frames at this rate, per second.
_CLOCK_RATE = 1000


#: Text of trials that tokenizers do not join with text around it.
_SAMPLE = "the cat"


class PromptFrame(NamedTuple):
    """Text around all text of a prompt: ``start`` and ``end``, as a processor writes them.

    With a ``lead``, one item of this modality is before all text, and its placeholder
    ``mark`` is a part of ``start``.
    """

    start: str
    end: str
    lead: str = ""
    mark: str = ""

    def write(self, text: str) -> str:
        """Return the prompt for ``text``."""
        return f"{self.start}{text.replace(self.mark, '').strip() if self.mark else text}{self.end}"

    def read(self, prompt: str) -> str:
        """Return the text of a ``prompt``."""
        return prompt.removeprefix(self.start).removesuffix(self.end)


class ItemProcessor:
    """See the module. ``placeholders`` has the text of a modality's placeholder in a prompt, and its token."""

    def __init__(self, processor: Any) -> None:
        self.model_tokens: Callable[[Tensor], Tensor] = lambda tokens: tokens
        self.processor = processor
        self._lock = threading.Lock()  # a tokenizer is not safe for two threads at once
        self.tokenizer: Any = processor.tokenizer
        options = processor._merge_kwargs(
            processor.valid_processor_kwargs, tokenizer_init_kwargs=self.tokenizer.init_kwargs
        )
        #: Whether the processor adds the tokenizer's own marks to a prompt.
        self.adds_marks = bool(options["text_kwargs"].get("add_special_tokens", True))
        self.placeholders: dict[str, tuple[str, int]] = {}
        self._pairs: dict[str, tuple[str, Any, int]] = {}
        #: Copies of a placeholder that the chat template writes for an item, for a processor that does not.
        self._copies = 1
        for modality, parts in _PARTS.items():
            if all(getattr(self.processor, part, None) is None for part in parts):
                continue
            text = next(self._list_marks(modality), None) or self._find_repeated(modality)
            if text:
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                if ids[-1:] == [self.tokenizer.convert_tokens_to_ids(text)]:  # others may begin each text (Fuyu)
                    self.placeholders[modality] = text, ids[-1]

    def _list_marks(self, modality: str) -> Iterator[str]:
        """Yield texts that can stand for an item, the best first."""
        names = (
            f"{modality}_placeholder_token",
            f"{modality}_token",
            f"{modality}_start_token",
            f"bo{modality[0]}_token",
        )
        for name in names:
            text = getattr(self.processor, name, None)
            text = getattr(text, "content", text)
            if isinstance(text, str) and text and text != self.tokenizer.bos_token:  # Kosmos 2.5 repeats that one
                yield text

    def _find_repeated(self, modality: str) -> str:
        """Return the text that the chat template repeats for an item."""
        ids = self.tokenizer(self._render_prompt(MEDIUM, modality, ""))["input_ids"]
        count, token = max(((len([*run]), token) for token, run in groupby(ids)), default=(0, 0))
        if count < _FEWEST_COPIES:
            return ""
        self._copies = count
        text: str = self.tokenizer.decode(token)
        return text

    def write_once(self, prompt: str) -> str:
        """Return a rendered ``prompt`` with each placeholder once."""
        for mark, _ in self.placeholders.values() if self._copies > 1 else ():
            prompt = prompt.replace(mark * self._copies, mark)
        return prompt

    @cached_property
    def frame(self) -> PromptFrame:
        """Text that the processor writes around the text of prompts with media."""
        for modality, (mark, token) in self.placeholders.items():
            for find in (self._find_frame, self._find_lead):
                with suppress(Exception):  # whatever a library raises: the modality is refused later
                    return find(modality, mark, token)
        return PromptFrame("", "")

    def _find_frame(self, modality: str, mark: str, token: int) -> PromptFrame:
        """Return the frame of a processor that keeps placeholders in place.

        Raises ``ValueError`` if it does not.
        """
        text = f"{_SAMPLE}{mark}{_SAMPLE}"
        plain = self.tokenizer(text, add_special_tokens=self.adds_marks)["input_ids"]
        place = plain.index(token)
        ids = self._run_processor(text, {modality: [next(sample_items(modality))]})["input_ids"][0].tolist()
        after = len(plain) - place - 1
        start, end = _find_run(plain[:place], ids), len(ids) - _find_run(plain[:place:-1], ids[::-1])
        if start < 0 or end > len(ids) or start + place > end - after or token in ids[:start]:
            raise ValueError("its processor moves items")
        return PromptFrame(self.tokenizer.decode(ids[:start]), self.tokenizer.decode(ids[end:]))

    def _find_lead(self, modality: str, mark: str, token: int) -> PromptFrame:
        ids = self._run_processor(_SAMPLE, {modality: [next(sample_items(modality))]})["input_ids"][0].tolist()
        for gap in ("", " "):
            own = self.tokenizer(gap + _SAMPLE, add_special_tokens=False)["input_ids"]
            if (start := _find_run(own, ids)) > 0:
                return PromptFrame(f"{mark}{gap}", self.tokenizer.decode(ids[start + len(own) :]), modality, mark)
        raise ValueError("its processor changes the text of prompts")

    def with_tokens(self, model_tokens: Callable[[Tensor], Tensor]) -> "ItemProcessor":
        """Return this processor for a model with other tokens.

        ``model_tokens`` returns the model's token for each of the processor's.
        """
        changed = copy.copy(self)
        changed.model_tokens = model_tokens
        return changed

    @staticmethod
    def load(checkpoint: Path) -> "ItemProcessor":
        """Load the processor of ``checkpoint``. Raises ``Fatal`` if it has none for media, or lacks a library."""
        from transformers import AutoProcessor

        try:
            processor = AutoProcessor.from_pretrained(checkpoint, local_files_only=True)
        except ImportError as error:
            raise errors.Fatal(
                f"the processor of {checkpoint} needs a library: {' '.join(str(error).split())}"
            ) from error
        if not hasattr(processor, "tokenizer"):
            raise errors.Fatal(f"transformers has no processor of media for {checkpoint}; it cannot be served")
        return ItemProcessor(processor)

    def decode_file(self, data: memoryview, modality: str, limits: media.MediaDecodeLimits) -> Any:
        """Decode one file to an RGB image, a ``Clip`` or samples. Raises as ``omnibus_models.media``."""
        match modality:
            case "image":
                return self._crop_line(media.decode_image(data, limits))
            case "video":
                return media.decode_video(data, limits, self._sampling)
        return media.decode_audio(data, limits, self.sampling_rate)

    def _crop_line(self, image: Any) -> Any:
        """Return ``image``, or the middle of a line if only that is used.

        The library would enlarge all of the line.
        """
        if not getattr(self.processor.image_processor, "do_center_crop", False):
            return image
        short = min(image.size)
        if max(image.size) <= MAX_ASPECT_RATIO * short:
            return image
        reach = [min(side, _CROPPED_SIDES * short) for side in image.size]
        left, top = ((side - length) // 2 for side, length in zip(image.size, reach, strict=True))
        return image.crop((left, top, left + reach[0], top + reach[1]))

    @cached_property
    def _sampling(self) -> FrameSampling:
        processor = self.processor.video_processor
        name = type(processor).__name__
        place = next((place for known, place in _FRAME_PLACES.items() if name.startswith(known)), "ends")
        return FrameSampling.of_processor(processor, place=place)

    @property
    def sampling_rate(self) -> int:
        """Samples of audio per second."""
        part = next(part for name in _PARTS["audio"] if (part := getattr(self.processor, name, None)) is not None)
        return int(getattr(part, "sampling_rate", 16_000))

    def process_item(self, item: Any, modality: str, alone: bool = True) -> Prepared:
        """Return a decoded ``item`` as its encoder takes it.

        ``alone`` means that its prompt has no other item of its modality. The metadata has its ``expansion``: runs
        [token, count], and of other values of each token, by their name. ``inputs`` are small tensors that the language
        model may need. Raises ``BadRequest`` for an item that the processor does not take.
        """
        frame = self.frame  # found before the lock is taken
        try:
            with self._lock:
                text, before, after = self._frames[modality]
            before = 0 if frame.lead == modality else before
            if alone:
                output = self.call_processor(text, {modality: [item]})
            else:
                if modality not in self._pairs:
                    self._pairs[modality] = self._make_pair(modality)
                text, companion, length = self._pairs[modality]
                after += length
                output = self.call_processor(text, {modality: [item, companion]})
                output = {name: _first_of_two(value) for name, value in output.items()}
        except (IndexError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
            raise errors.BadRequest(f"this model does not take this {modality}; send another one") from error
        ids = output.pop("input_ids")[0].tolist()
        inside = slice(before, len(ids) - after)
        output.pop("attention_mask", None)
        by_token = {name: output.pop(name)[0].tolist() for name in [*output] if _is_by_token(output[name], len(ids))}
        expansion = {name: _count_runs(values[inside]) for name, values in {"input_ids": ids, **by_token}.items()}
        output = {name: _single_tensor(value) for name, value in output.items()}
        features = {name: value for name, value in output.items() if isinstance(value, Tensor)}
        small = {name: form for name, value in features.items() if (form := _describe_tensor(value)) is not None}
        lists = {name: value for name, value in output.items() if isinstance(value, list) and _has_numbers(value)}
        [(_, rows)] = Counter(ids[inside]).most_common(1) or [(0, 1)]  # marks and text are fewer
        meta = {
            "modality": modality,
            "n_tokens": rows,
            "expansion": expansion,
            "inputs": {**small, **lists},
            **({} if alone else {"alone": False}),
        }
        return Prepared(modality, features, meta)

    def call_processor(self, text: str, items: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return the processor's output for ``text`` and its decoded ``items``.

        It has one row. Raises ``ValueError`` for several items if the processor decides their places.
        """
        if len(items.get(self.frame.lead, ())) > 1:
            raise ValueError(f"this processor puts one {self.frame.lead} before the text")
        return self._run_processor(self.frame.read(text), items)

    def _run_processor(self, text: str, items: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for mark, _ in self.placeholders.values():
            text = text.replace(mark, mark * self._copies)
        for modality, values in items.items():
            if modality == "video":
                options |= {
                    "videos": [clip.frames for clip in values],
                    "do_sample_frames": False,
                    "return_metadata": True,
                }
                options["video_metadata"] = [_describe_times(clip) for clip in values]
            elif values:
                # A flat list would be one image for each of several texts.
                is_nested = modality == "image" and len(values) > 1
                options[_ARGUMENTS[modality]] = [list(values)] if is_nested else list(values)
            if modality == "audio":
                options["sampling_rate"] = self.sampling_rate
        with self._lock:
            try:
                output = dict(self.processor(text=[text], return_tensors="pt", **options))
            except ValueError:
                if options.get("images") == items.get("image"):
                    raise
                options["images"] = list(items["image"])  # GOT-OCR2 takes nested images as pages of one
                output = dict(self.processor(text=[text], return_tensors="pt", **options))
        output.pop("video_metadata", None)
        kinds = self.token_kinds(output["input_ids"])
        if kinds is not None:
            output.setdefault("mm_token_type_ids", kinds)
        return output

    def write_prompt(self, text: str, modality: str) -> str:
        """Return ``text`` with placeholders for ``MEDIUM``.

        If there is a chat template, it is a message in it.
        """
        prompt = self._render_prompt(text, modality, self.placeholders[modality][0])
        return self.frame.write(self.write_once(prompt))

    def _render_prompt(self, text: str, modality: str, mark: str) -> str:
        if not getattr(self.processor, "chat_template", None):
            return text.replace(MEDIUM, mark)
        texts = text.split(MEDIUM)
        parts = [{"type": "text", "text": texts[0]}]
        for after in texts[1:]:
            parts += [{"type": modality}, {"type": "text", "text": after}]
        content = [part for part in parts if part.get("text") != ""]
        try:
            rendered: str = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
        except Exception:  # noqa: BLE001 a template of a stranger raises anything
            return text.replace(MEDIUM, mark)
        return rendered

    def token_kinds(self, ids: Any) -> Tensor | None:
        """Return the kind of each token of expanded prompts ``ids`` [B, T].

        It is None if the processor has no rule.
        """
        create_kinds = getattr(self.processor, "create_mm_token_type_ids", None)
        if create_kinds is None or len(inspect.signature(create_kinds).parameters) != 1:
            return None
        return torch.tensor(create_kinds(ids.tolist()))

    @cached_property
    def _frames(self) -> dict[str, tuple[str, int, int]]:
        """A prompt with one medium of each modality.

        The numbers are those of the tokens before and after its placeholder.
        """
        frames = {}
        for modality, (_, token) in self.placeholders.items():
            text = self.write_prompt(_SAMPLE if modality == self.frame.lead else MEDIUM, modality)
            ids = self.tokenize(text)
            if ids.count(token) != 1:  # its chat template does not place this modality
                text = self.frame.write(self.placeholders[modality][0])
                ids = self.tokenize(text)
            frames[modality] = text, ids.index(token), len(ids) - ids.index(token) - 1
        return frames

    def _make_pair(self, modality: str) -> tuple[str, Any, int]:
        """Return a prompt with two media of ``modality``, the second of them, and the number of its tokens."""
        mark, token = self.placeholders[modality]
        text, before, after = self._frames[modality]
        text = text.replace(mark, f"{mark}{mark}", 1)
        companion = next(sample_items(modality))
        ids = self.call_processor(text, {modality: [companion, companion]})["input_ids"][0]
        count = self.tokenize(text).count(token)
        return text, companion, (len(ids) - before - after) // count

    @cached_property
    def closer(self) -> frozenset[str]:
        """Modalities whose processing depends on whether an item is alone."""
        return frozenset(modality for modality in self.placeholders if self._is_closer(modality))

    def _is_closer(self, modality: str) -> bool:
        item = [*sample_items(modality)][-1]
        try:
            alone, beside = (self.process_item(item, modality, alone) for alone in (True, False))
        except Exception:  # noqa: BLE001 whatever a library raises; some take one item
            return False
        return bool(alone.meta["expansion"] != beside.meta["expansion"])

    def expand_prompt(self, text: str, media: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        """Return the tokens of ``text`` with its placeholders expanded.

        The second value contains the place at which the tokens of each medium begin.
        """
        tokens: list[int] = []
        starts: list[int] = []
        remaining = iter(media)
        marks = {token for _, token in self.placeholders.values()}
        for token in self.tokenize(text):
            item = next(remaining, None) if token in marks else None
            if item is not None:
                starts.append(len(tokens))
                tokens += expand_runs(item.meta["expansion"]["input_ids"])
            else:
                tokens.append(token)
        return tokens, starts

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a prompt, whose placeholders are not expanded."""
        mark = self.frame.mark if self.frame.mark and text.startswith(self.frame.mark) else ""
        ids: list[int] = self.tokenizer(text.removeprefix(mark), add_special_tokens=self.adds_marks and not mark)[
            "input_ids"
        ]
        return [self.placeholders[self.frame.lead][1], *ids] if mark else ids

    def find_row_token(self, modality: str, item: Encoded) -> int | None:
        """Return the token of each row of an ``item`` of ``modality``.

        It is None if there is not one for each row.
        """
        counts = count_tokens(item.meta["expansion"]["input_ids"])
        tokens = (*self._own_tokens(modality), *counts)
        return next((token for token in tokens if counts[token] == len(item.embeds)), None)

    def _own_tokens(self, modality: str) -> list[int]:
        own = getattr(self.processor, f"{modality}_token_id", None)
        return [token for token in (own, self.placeholders[modality][1]) if isinstance(token, int)]


def count_tokens(runs: Sequence[Sequence[int]]) -> Counter[int]:
    """Return how often each value occurs in ``runs`` [value, count]."""
    counts = Counter[int]()
    for value, count in runs:
        counts[value] += count
    return counts


def expand_runs(runs: Sequence[Sequence[int]]) -> list[int]:
    """Return the values of ``runs`` [value, count]."""
    return [value for value, count in runs for _ in range(count)]


def _first_of_two(value: Any) -> Any:
    """Return the first half of a tensor with two items.

    Other values, such as counts, belong to both items.
    """
    return value[:1] if isinstance(value, Tensor) and len(value) == 2 else value


def _single_tensor(value: Any) -> Any:
    """Return [1, ...] of a list of one tensor."""
    return value[0][None] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Tensor) else value


def _find_run(run: Sequence[int], values: Sequence[int]) -> int:
    """Return the first place of ``run`` in ``values``, or -1."""
    places = range(len(values) - len(run) + 1)
    return next((place for place in places if values[place : place + len(run)] == run), -1)


def _count_runs(values: Sequence[int]) -> list[list[int]]:
    return [[value, len(list(run))] for value, run in groupby(values)]


def _describe_tensor(value: Tensor) -> Any:
    """Return ``value`` as small JSON: its numbers, or its shape and runs of numbers. None if it is large."""
    if value.numel() <= _MAX_NUMBERS:
        return value.tolist()
    runs = None if value.is_floating_point() else _count_runs(value.flatten().tolist())
    return {"shape": list(value.shape), "runs": runs} if runs and len(runs) <= _MAX_NUMBERS else None


def _has_numbers(value: Any) -> bool:
    return all(map(_has_numbers, value)) if isinstance(value, list) else isinstance(value, int | float)


def _is_by_token(value: Any, length: int) -> bool:
    return isinstance(value, Tensor) and value.shape == (1, length) and not value.is_floating_point()


def _describe_times(clip: media.Clip) -> dict[str, Any]:
    numbers = [round(second * _CLOCK_RATE) for second in clip.seconds]
    height, width = clip.frames.shape[1:3]
    return {
        "fps": _CLOCK_RATE,
        "frames_indices": numbers,
        "total_num_frames": numbers[-1] + 1,
        "duration": numbers[-1] / _CLOCK_RATE,
        "height": height,
        "width": width,
    }


def sample_items(modality: str, seed: int = 0, *, same_size: bool = False) -> Iterator[Any]:
    """Yield two decoded items of noise, of different sizes unless ``same_size``, for trials."""
    noise = np.random.default_rng(seed)
    for width, height, count in ((112, 84, 4), (112, 84, 4) if same_size else (84, 140, 8)):
        if modality == "audio":
            yield (0.1 * noise.standard_normal(4000 * count)).astype(np.float32)
            continue
        frames = noise.integers(0, 255, (count // 2 + 2, height, width, 3), dtype=np.uint8)
        if modality == "image":
            from PIL import Image

            yield Image.fromarray(frames[0])
        else:
            yield media.Clip(frames, 2.0, tuple(number / 2 for number in range(len(frames))), True)
