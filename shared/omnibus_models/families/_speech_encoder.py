"""The audio encoder of recognizers: windows of a recording, each encoded as the library encodes a short one.

A long recording is cut in pauses, so that no word is cut if there is a pause. Cuts divide the samples. Each window but
the last is cut in the last third of the longest possible one, in the middle of the 200 ms with the least energy. Of
equally quiet places, it is the latest.
"""

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import AudioWindow, Encoded, LoadedComponent, Prepared

#: Seconds of a window if the model has no limit of its own.
_WINDOW_SECONDS = 30.0
#: Windows in one pass of the encoder.
_MAX_WINDOWS = 8
_MAX_SHAPES = 1024  # of windows whose rows are known
_INPUTS = ("input_features", "input_values", "attention_mask")

_PAUSE_SECONDS = 0.2
_FRAME_SECONDS = 0.01
#: The share of the longest window after which it may be cut.
_SEARCHED_FROM = 2 / 3
#: The share of the longest window that the last one has at least, since models hear little in less.
_LEAST_SHARE = 0.1
#: Places are equally quiet if their energies differ by less than this share of the loudest place's.
_EQUAL_SHARE = 1e-6


class SpeechWindowEncoder(LoadedComponent):
    """See ``contract.SpeechEncoder``. Each window is encoded on its own, as the library encodes a short recording.

    ``outline`` is the encoder without weights, on the device ``meta``.
    """

    modalities = frozenset({"audio"})

    def __init__(self, module: Any, outline: Any, features: Any, limits: media.MediaDecodeLimits) -> None:
        super().__init__(module)
        self._features = features
        self._limits = limits
        self._rate: int = features.sampling_rate
        self.window_seconds = float(getattr(features, "chunk_length", 0) or _WINDOW_SECONDS)
        self._encoder, self._outline = module.get_encoder(), outline
        self._accepted = [name for name in _INPUTS if name in inspect.signature(self._encoder.forward).parameters]
        self._rows: dict[tuple[int, ...], int] = {}

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode one file, cut it into windows and compute their features."""
        if modality != "audio":
            raise errors.BadRequest(f"this encoder takes audio, not {modality}")
        samples = media.decode_audio(data, self._limits, self._rate)
        cuts = cut_windows(samples, self._rate, self.window_seconds)
        features: dict[str, Tensor] = {}
        windows = []
        for index, (begin, end) in enumerate(pairwise(cuts)):
            inputs = self._window_inputs(samples[begin:end])
            features |= {f"{index} {name}": value for name, value in inputs.items()}
            windows.append(AudioWindow(begin / self._rate, end / self._rate, self._count_rows(inputs)))
        return _prepared(features, windows)

    def _window_inputs(self, samples: Any) -> dict[str, Tensor]:
        try:
            inputs = self._features(samples, sampling_rate=self._rate, return_tensors="pt")
        except (RuntimeError, ValueError) as error:
            raise errors.BadMedia("the audio is too short for this model; send a longer one") from error
        return {name: inputs[name][0] for name in self._accepted if name in inputs}

    def _count_rows(self, inputs: Mapping[str, Tensor]) -> int:
        """Return the rows of a window, by a pass without weights."""
        shape = tuple(next(iter(inputs.values())).shape)
        if shape not in self._rows:
            if len(self._rows) > _MAX_SHAPES:
                self._rows.clear()
            try:
                self._rows[shape] = self._measure_rows(inputs)
            except RuntimeError as error:
                raise errors.BadMedia("the audio is too short for this model; send a longer one") from error
        return self._rows[shape]

    @torch.no_grad()
    def _measure_rows(self, inputs: Mapping[str, Tensor]) -> int:
        with suppress(RuntimeError):  # an encoder that reads values, which need memory
            return _run_encoder(self._outline, [inputs]).shape[1]
        return _run_encoder(self._encoder, [inputs]).shape[1]

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Encode the windows of all items, those of equal shape together."""
        windows = [window for item in batch for window in _split_features(item)]
        groups = defaultdict[tuple[int, ...], list[int]](list)
        for index, window in enumerate(windows):
            groups[tuple(next(iter(window.values())).shape)].append(index)
        rows: dict[int, Tensor] = {}
        for indexes in groups.values():
            for first in range(0, len(indexes), _MAX_WINDOWS):
                chosen = indexes[first : first + _MAX_WINDOWS]
                rows |= zip(chosen, _run_encoder(self._encoder, [windows[index] for index in chosen]), strict=True)
        ordered = iter([rows[index] for index in range(len(windows))])
        return [Encoded(torch.cat([next(ordered) for _ in item.meta["windows"]]).float(), item.meta) for item in batch]

    def split_item(self, item: Prepared) -> Sequence[Prepared]:
        """See ``contract.MediaEncoder``: the windows, so that those of a growing recording are kept."""
        windows = item.meta["windows"]
        return [_prepared({f"0 {name}": value for name, value in inputs.items()}, [window])
                for inputs, window in zip(_split_features(item), windows, strict=True)]  # fmt: skip

    def join_parts(self, parts: Sequence[Prepared]) -> Prepared:
        """See ``contract.MediaEncoder``."""
        features = {
            f"{index} {name}": value
            for index, part in enumerate(parts)
            for name, value in _split_features(part)[0].items()
        }
        return _prepared(features, [window for part in parts for window in part.meta["windows"]])


def _run_encoder(encoder: Any, windows: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return the rows [B, R, H] of windows of one shape."""
    parameter = next(encoder.parameters())
    inputs = {name: torch.stack([window[name] for window in windows]) for name in windows[0]}
    if "attention_mask" in inputs and bool(inputs["attention_mask"].all()):
        del inputs["attention_mask"]
    inputs = {
        name: value.to(parameter.device, parameter.dtype if value.is_floating_point() else value.dtype)
        for name, value in inputs.items()
    }
    hidden: Tensor = encoder(**inputs, return_dict=True).last_hidden_state
    return hidden


def _prepared(features: Mapping[str, Tensor], windows: Sequence[AudioWindow]) -> Prepared:
    count = sum(window[2] for window in windows)
    return Prepared(
        "audio", features, {"modality": "audio", "n_tokens": count, "windows": [[*each] for each in windows]}
    )


def _split_features(item: Prepared) -> list[dict[str, Tensor]]:
    windows: list[dict[str, Tensor]] = [{} for _ in item.meta["windows"]]
    for key, value in item.features.items():
        index, name = key.split(" ")
        windows[int(index)][name] = value
    return windows


def cut_windows(samples: NDArray[np.float32], rate: int, longest_seconds: float) -> list[int]:
    """Return the first sample of each window, and the last one's end.

    No window is longer than ``longest_seconds``.
    """
    longest, cuts = int(longest_seconds * rate), [0]
    while len(samples) - cuts[-1] > longest:
        begin = cuts[-1] + int(longest * _SEARCHED_FROM)
        end = min(cuts[-1] + longest, len(samples) - int(longest * _LEAST_SHARE))
        cuts.append(begin + _find_pause(samples[begin:end], rate))
    return [*cuts, len(samples)]


def _find_pause(samples: NDArray[np.float32], rate: int) -> int:
    """Return the middle of the quietest place of ``samples``."""
    frame, frames = int(rate * _FRAME_SECONDS), round(_PAUSE_SECONDS / _FRAME_SECONDS)
    count = len(samples) // frame
    if count <= frames:
        return len(samples)
    energy = np.square(samples[: count * frame], dtype=np.float64).reshape(count, frame).sum(axis=1)
    sums = np.concatenate([[0.0], np.cumsum(energy)])
    places = sums[frames:] - sums[:-frames]
    quiet = np.flatnonzero(places <= places.min() + _EQUAL_SHARE * places.max())
    return int(quiet[-1] + frames // 2) * frame
