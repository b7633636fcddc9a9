"""The C interface of llama.cpp, exported by the wheel ``xllamacpp``.

The wheel's own classes are llama.cpp's HTTP server, which chooses tokens itself and ignores constraints that it does
not know. The functions below only compute logits. Structures are those of one release, so another one is refused.
"""

import ctypes
import logging
import os
import sys
import threading
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from omnibus import errors
from omnibus.process import run_module

PACKAGE, VERSION = "xllamacpp", "2026.10.11549"

#: Seconds to load a file for a trial. Weights are only mapped.
TRIAL_SECONDS = 300.0

_log = logging.getLogger(__name__)
#: Levels of ``ggml_log_level`` that are logged, by those of Python. A text without a level continues the last one.
_LEVELS = {3: logging.WARNING, 4: logging.ERROR}


class ModelParams(ctypes.Structure):
    """``llama_model_params``."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


class ContextParams(ctypes.Structure):
    """``llama_context_params``."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


class TokenBatch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


class ProjectorParams(ctypes.Structure):
    """``mtmd_context_params``, whose later fields keep their defaults."""

    _fields_ = (
        ("use_gpu", c_bool),
        ("device", c_void_p),
        ("print_timings", c_bool),
        ("n_threads", c_int),
        ("image_marker", c_char_p),
        ("media_marker", c_char_p),
        ("flash_attn_type", c_int),
        ("warmup", c_bool),
        ("image_min_tokens", c_int),
        ("image_max_tokens", c_int),
        ("later", c_uint64 * 16),
    )


class PromptText(ctypes.Structure):
    """``mtmd_input_text``."""

    _fields_ = (("text", c_char_p), ("text_len", c_size_t), ("add_special", c_bool), ("parse_special", c_bool))


#: How often a thread checks a barrier before it sleeps. By OpenMP's default it spins for milliseconds. Beside another
#: program on one of the cores, a step then takes ten times as long instead of three times.
_SPINS = "2000"

_LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)

#: Result and arguments of each function.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [_LOG_CALLBACK, c_void_p]),
    "llama_model_default_params": (ModelParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_model_has_encoder": (c_bool, [c_void_p]),
    "llama_model_is_hybrid": (c_bool, [c_void_p]),
    "llama_model_is_recurrent": (c_bool, [c_void_p]),
    "llama_model_n_ctx_train": (c_int32, [c_void_p]),
    "llama_model_n_embd": (c_int32, [c_void_p]),
    "llama_model_n_embd_out": (c_int32, [c_void_p]),
    "llama_model_n_head": (c_int32, [c_void_p]),
    "llama_model_n_head_kv": (c_int32, [c_void_p]),
    "llama_model_n_layer": (c_int32, [c_void_p]),
    "llama_model_n_params": (c_uint64, [c_void_p]),
    "llama_model_rope_type": (c_int, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_vocab_get_text": (c_char_p, [c_void_p, c_int32]),
    "llama_vocab_is_eog": (c_bool, [c_void_p, c_int32]),
    "llama_tokenize": (c_int32, [c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool]),
    "llama_context_default_params": (ContextParams, []),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_n_ctx_seq": (c_uint32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_batch_init": (TokenBatch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [TokenBatch]),
    "llama_adapter_lora_init": (c_void_p, [c_void_p, c_char_p]),
    "llama_set_adapters_lora": (c_int32, [c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_float)]),
    "llama_decode": (c_int32, [c_void_p, TokenBatch]),
    "llama_encode": (c_int32, [c_void_p, TokenBatch]),
    "llama_get_embeddings_seq": (POINTER(c_float), [c_void_p, c_int32]),
    "llama_set_causal_attn": (None, [c_void_p, c_bool]),
    "mtmd_bitmap_free": (None, [c_void_p]),
    "mtmd_bitmap_init": (c_void_p, [c_uint32, c_uint32, c_void_p]),
    "mtmd_context_params_default": (ProjectorParams, []),
    "mtmd_decode_use_mrope": (c_bool, [c_void_p]),
    "mtmd_decode_use_non_causal": (c_bool, [c_void_p, c_void_p]),
    "mtmd_default_marker": (c_char_p, []),
    "mtmd_encode_chunk": (c_int32, [c_void_p, c_void_p]),
    "mtmd_free": (None, [c_void_p]),
    "mtmd_get_output_embd": (POINTER(c_float), [c_void_p]),
    "mtmd_image_tokens_get_nx": (c_size_t, [c_void_p]),
    "mtmd_init_from_file": (c_void_p, [c_char_p, c_void_p, ProjectorParams]),
    "mtmd_input_chunk_get_n_tokens": (c_size_t, [c_void_p]),
    "mtmd_input_chunk_get_tokens_image": (c_void_p, [c_void_p]),
    "mtmd_input_chunk_get_tokens_text": (POINTER(c_int32), [c_void_p, POINTER(c_size_t)]),
    "mtmd_input_chunk_get_type": (c_int, [c_void_p]),
    "mtmd_input_chunks_free": (None, [c_void_p]),
    "mtmd_input_chunks_get": (c_void_p, [c_void_p, c_size_t]),
    "mtmd_input_chunks_init": (c_void_p, []),
    "mtmd_input_chunks_size": (c_size_t, [c_void_p]),
    "mtmd_log_set": (None, [_LOG_CALLBACK, c_void_p]),
    "mtmd_tokenize": (c_int32, [c_void_p, c_void_p, POINTER(PromptText), POINTER(c_void_p), c_size_t]),
    "llama_get_logits": (c_void_p, [c_void_p]),
}

_loading = threading.Lock()


def _write_log(level: int, text: bytes, _: Any) -> None:
    if level in _LEVELS:
        _log.log(_LEVELS[level], "llama.cpp: %s", text.decode(errors="replace").rstrip())


#: Kept: the library calls it until the process ends.
_log_callback = _LOG_CALLBACK(_write_log)


def find_library() -> Path | None:
    """Return the file of the wheel's library: None if the wheel is not installed."""
    spec = util.find_spec(PACKAGE)
    places = [] if spec is None else [Path(each) for each in spec.submodule_search_locations or ()]
    return next((file for place in places for file in place.glob(f"{PACKAGE}*.so")), None)


def load_library() -> Any:
    """Return the library with typed functions. Raises ``Fatal`` if there is none, or if it is of another release."""
    with _loading:
        return _load_library()


@cache
def _load_library() -> Any:
    file = find_library()
    remedy = f"install {PACKAGE}=={VERSION}: pip install 'omnibus-serve[llama-cpp]'"
    if file is None:
        raise errors.Fatal(f"llama.cpp is not installed; {remedy}")
    if (version := metadata.version(PACKAGE)) != VERSION:
        raise errors.Fatal(f"{PACKAGE} is {version}, whose structures may differ; {remedy}")
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # the library would start a debugger when it aborts
    library = ctypes.CDLL(str(file))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    _require_layout(library, remedy)
    library.llama_log_set(_log_callback, None)
    library.mtmd_log_set(_log_callback, None)
    library.llama_backend_init()
    return library


def _require_layout(library: Any, remedy: str) -> None:
    """Raise ``Fatal`` unless the library's own defaults fit the structures."""
    model, context = library.llama_model_default_params(), library.llama_context_default_params()
    seen = (model.use_extra_bufts, model.vocab_only, context.n_ctx, context.n_batch, context.n_ubatch)
    projector = library.mtmd_context_params_default()
    numbers = (projector.n_threads, projector.flash_attn_type, projector.image_min_tokens, projector.image_max_tokens)
    if numbers != (4, -1, -1, -1) or projector.media_marker != library.mtmd_default_marker():
        raise errors.Fatal(f"the structures of this build of {PACKAGE} differ; {remedy}")
    if seen != (True, False, 512, 2048, 512) or (context.n_seq_max, context.type_k, context.type_v) != (1, 1, 1):
        raise errors.Fatal(f"the structures of this build of {PACKAGE} differ; {remedy}")


def open_model(library: Any, file: Path, computes: bool = True) -> int:
    """Map the weights of ``file`` into memory and return their handle. Raises ``Fatal`` if the library cannot.

    Unless it ``computes`` with them, they take no memory of their own.
    """
    params = library.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = 0, computes
    handle: int | None = library.llama_model_load_from_file(os.fsencode(file), params)
    if handle is None:
        raise errors.Fatal(f"llama.cpp cannot load {file}; its log has the reason")
    return handle


async def require_loadable(file: Path) -> None:
    """Raise ``Fatal`` if llama.cpp cannot load ``file``, tried in another process.

    The library ends its process at some faults of a file.
    """
    try:
        await run_module.call_module(__name__, str(file), within=TRIAL_SECONDS)
    except errors.Fatal as error:
        raise errors.Fatal(f"llama.cpp cannot load {file}: {error.message}") from None


def _try_file(file: Path) -> bool:
    library = load_library()
    library.llama_model_free(open_model(library, file))
    return True


if __name__ == "__main__":
    sys.exit(run_module.report_answer(lambda: _try_file(Path(sys.argv[1]))))
