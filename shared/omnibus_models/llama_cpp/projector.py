"""Projectors (mmproj): the encoders of images for a language model in a GGUF file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_void_p
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from omnibus import errors
from omnibus.checkpoints.gguf_header import read_gguf_header
from omnibus_models.llama_cpp.library import PromptText, load_library, open_model

#: The first column of an image's rows: the id of a token, or one of these for a row that is an embedding. The second
#: is for rows that attend to one another.
CAUSAL_ROW, MUTUAL_ROW = -1, -2
#: Columns before an embedding: that one, and the row's positions (time, height, width) from the first row's on.
HEAD_COLUMNS = 4
_TEXT = 0  # the type of a chunk


def count_parameters(file: Path) -> int:
    """Return the number of weights in the GGUF ``file``."""
    return sum(prod(tensor.shape) for tensor in read_gguf_header(file).tensors.values())


class ImageProjector:
    """The projector in ``file``, for the language model in ``model``. Raises ``Fatal`` if they do not fit.

    ``threads`` compute. Weights of the language model are not computed with.
    """

    def __init__(self, file: Path, model: Path, threads: int) -> None:
        self._library: Any = load_library()
        self._context: int | None = None
        self._model = open_model(self._library, model, computes=False)
        self.width: int = self._library.llama_model_n_embd(self._model)
        params = self._library.mtmd_context_params_default()
        params.use_gpu, params.print_timings, params.n_threads = False, False, threads or os.cpu_count() or 1
        self._context = self._library.mtmd_init_from_file(os.fsencode(file), self._model, params)
        if not self._context:
            raise errors.Fatal(f"llama.cpp cannot load the projector {file} for {model}; its log has the reason")
        self._marker: bytes = self._library.mtmd_default_marker()

    def count_rows(self, pixels: np.ndarray) -> int:
        """Return the rows of an image uint8 [height, width, 3]. Thread-safe."""
        with self._split_image(pixels) as chunks:
            return sum(self._library.mtmd_input_chunk_get_n_tokens(chunk) for chunk in chunks)

    def encode_image(self, pixels: np.ndarray) -> np.ndarray:
        """Return the rows of an image, float32 [n, ``HEAD_COLUMNS`` + width]; see ``CAUSAL_ROW``.

        For one thread at a time.
        """
        parts, place = [], 0
        with self._split_image(pixels) as chunks:
            for chunk in chunks:
                parts.append(self._encode_chunk(chunk))
                places = parts[-1][:, 1:HEAD_COLUMNS]
                places += place
                place = int(places.max()) + 1
        return np.concatenate(parts)

    @contextmanager
    def _split_image(self, pixels: np.ndarray) -> Iterator[list[int]]:
        """Yield the chunks of an image: tokens around it, and parts to encode."""
        library, data = self._library, np.ascontiguousarray(pixels)
        bitmap = library.mtmd_bitmap_init(data.shape[1], data.shape[0], data.ctypes.data)
        chunks = library.mtmd_input_chunks_init()
        try:
            text = PromptText(self._marker, len(self._marker), False, True)
            if library.mtmd_tokenize(self._context, chunks, byref(text), (c_void_p * 1)(bitmap), 1):
                raise errors.BadMedia("this image cannot be prepared for the model", param="media")
            yield [library.mtmd_input_chunks_get(chunks, at) for at in range(library.mtmd_input_chunks_size(chunks))]
        finally:
            library.mtmd_input_chunks_free(chunks)
            library.mtmd_bitmap_free(bitmap)

    def _encode_chunk(self, chunk: int) -> np.ndarray:
        library = self._library
        rows = np.zeros((library.mtmd_input_chunk_get_n_tokens(chunk), HEAD_COLUMNS + self.width), np.float32)
        numbers = np.arange(len(rows))
        rows[:, 1:HEAD_COLUMNS] = numbers[:, None]
        if library.mtmd_input_chunk_get_type(chunk) == _TEXT:
            tokens = library.mtmd_input_chunk_get_tokens_text(chunk, byref(c_size_t()))
            rows[:, 0] = tokens[: len(rows)]
            if rows[:, 0].min() < 0:
                raise errors.Fatal("the model's vocabulary lacks a token of its images: use its own file")
            return rows
        if library.mtmd_encode_chunk(self._context, chunk):
            raise errors.Fatal("llama.cpp cannot encode this image")
        is_mutual = library.mtmd_decode_use_non_causal(self._context, chunk)
        rows[:, 0] = MUTUAL_ROW if is_mutual else CAUSAL_ROW
        pointer = library.mtmd_get_output_embd(self._context)
        if library.mtmd_decode_use_mrope(self._context):
            columns = library.mtmd_image_tokens_get_nx(library.mtmd_input_chunk_get_tokens_image(chunk))
            rows[:, 1:HEAD_COLUMNS] = np.stack([numbers * 0, numbers // columns, numbers % columns], axis=1)
        rows[:, HEAD_COLUMNS:] = np.ctypeslib.as_array(pointer, (len(rows), self.width))
        return rows

    def __del__(self) -> None:
        if self._context:
            self._library.mtmd_free(self._context)
        if getattr(self, "_model", None):
            self._library.llama_model_free(self._model)
