"""A gateway's OpenAPI document, narrowed to requests that tiny models serve quickly.

The whole document allows everything that the narrow one does.
"""

import base64
from typing import Any

import schemathesis
from hypothesis import strategies as st

from tests.e2e.routes.conftest import DIRECTOR, EDITOR, EMBEDDER, PAINTER, RERANKER
from tests.e2e.system import OMNI
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound

PNG, WAV = make_sample_picture("PNG", (40, 30)), make_sample_sound("wav", "pcm_s16le", 0.3, 16000)

Schema = dict[str, Any]

_FEW: Schema = {"enum": [1, 2]}
_STEPS: Schema = {"enum": [2, 3]}
_TOKENS: Schema = {"enum": [1, 8]}
_CODES: Schema = {"enum": [1, 60]}
_SEED: Schema = {"enum": [0, 7, 2**60]}
_SMALL: Schema = {"enum": ["32x32", "64x32"]}
_FILE: Schema = {"type": "string", "format": "binary"}

#: Of each shape, the properties that a request has for sure, so that no answer takes long, and how they are.
_BOUNDED: dict[str, dict[str, Schema]] = {
    "ChatRequest": {"model": {"enum": [OMNI]}, "max_completion_tokens": _TOKENS, "modalities": {"enum": [["text"], ["text", "audio"]]}, "audio": {"$ref": "#/components/schemas/AudioOutput"}},
    "MessageRequest": {"model": {"enum": [OMNI]}, "max_tokens": _TOKENS},
    "CountTokensRequest": {"model": {"enum": [OMNI]}},
    "TokenizeRequest": {"model": {"enum": [OMNI]}, "prompt": {"type": "string"}},
    "DetokenizeRequest": {"model": {"enum": [OMNI]}, "tokens": {"type": "array", "items": {"enum": [1, 7]}, "maxItems": 8}},
    "CompletionRequest": {"model": {"enum": [OMNI]}, "max_tokens": _TOKENS, "n": _FEW},
    "ResponseRequest": {"model": {"enum": [OMNI]}, "max_output_tokens": _TOKENS},
    "InputTokensRequest": {"model": {"enum": [OMNI]}},
    "CompactRequest": {"model": {"enum": [OMNI]}, "max_output_tokens": _TOKENS},
    "AudioOutput": {"voice": {"enum": ["alloy", "Ethan", "nobody"]}, "max_tokens": _CODES},
    "ImageRequest": {"model": {"enum": [PAINTER]}, "size": _SMALL, "steps": _STEPS, "n": _FEW},
    "EditForm": {"model": {"enum": [EDITOR]}, "size": _SMALL, "steps": _STEPS, "n": _FEW, "image": {"type": "array", "items": _FILE, "minItems": 1, "maxItems": 1}},
    "EmbeddingRequest": {"model": {"enum": [EMBEDDER]}},
    "RerankRequest": {"model": {"enum": [RERANKER]}},
    "BatchRequest": {"endpoint": {"enum": ["/v1/completions"]}, "completion_window": {"enum": ["24h"]}, "input_file_id": {}},
    "SpeechRequest": {"model": {"enum": [OMNI]}, "voice": {"enum": ["alloy", "nobody"]}, "max_tokens": _CODES},
    "TranscriptionForm": {"model": {"enum": [OMNI]}, "max_tokens": _TOKENS, "file": _FILE},
    "TranslationForm": {"model": {"enum": [OMNI]}, "max_tokens": _TOKENS, "file": _FILE},
    "ClientSecretRequest": {},
    "UploadRequest": {"bytes": {"enum": [1, 64]}},
    "VideoRequest": {"model": {"enum": [DIRECTOR]}, "size": {"enum": ["32x32", "64x32"]}, "seconds": {"enum": ["0.375"]}, "steps": _STEPS, "fps": {"enum": [8, 24]}},
}  # fmt: skip
#: Optional fields of a request. All others are rejected, or are aliases of these.
_FREE: dict[str, tuple[str, ...]] = {
    "ChatRequest": (
        "messages", "stream", "temperature", "top_p", "top_k", "repetition_penalty", "seed", "stop", "ignore_eos",
        "user", "metadata",
    ),
    "MessageRequest": (
        "messages", "system", "stream", "stop_sequences", "temperature", "top_p", "top_k", "metadata", "service_tier",
    ),
    "CountTokensRequest": ("messages", "system"),
    "TokenizeRequest": ("add_special_tokens", "return_token_strs"),
    "DetokenizeRequest": (),
    "CompletionRequest": ("prompt", "stream", "temperature", "top_p", "seed", "stop", "ignore_eos"),
    "ResponseRequest": (
        "input", "instructions", "stream", "store", "temperature", "top_p", "seed", "metadata", "user", "include",
    ),
    "InputTokensRequest": ("input", "instructions"),
    "CompactRequest": ("input", "instructions", "seed"),
    "AudioOutput": ("format",),
    "ImageRequest": (
        "prompt", "response_format", "output_format", "negative_prompt", "seed", "guidance", "stream", "partial_images",
        "user",
    ),
    "EditForm": ("prompt", "response_format", "output_format", "negative_prompt", "seed", "guidance"),
    "BatchRequest": ("metadata", "output_expires_after"),
    "EmbeddingRequest": ("input", "encoding_format", "pooling", "user"),
    "RerankRequest": ("query", "documents", "top_n", "return_documents", "user"),
    "SpeechRequest": ("input", "instructions", "response_format", "speed", "stream_format", "seed", "temperature"),
    "TranscriptionForm": ("language", "prompt", "response_format", "temperature", "stream", "seed"),
    "TranslationForm": ("prompt", "response_format", "temperature", "seed"),
    "ClientSecretRequest": ("expires_after",),
    "UploadRequest": ("filename", "mime_type", "purpose", "expires_after"),
    "VideoRequest": ("prompt", "negative_prompt", "seed", "guidance", "sound"),
}  # fmt: skip
#: What messages and their parts may be; tools and files are refused by name.
_KINDS = {
    "ToolMessage", "FunctionMessage", "FilePart", "VideoPart", "ToolUseBlock", "ToolResultBlock", "DocumentBlock",
}  # fmt: skip


def register_formats() -> None:
    """Register formats for files and URLs of media with schemathesis."""
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    schemathesis.openapi.format("binary", st.sampled_from([PNG, WAV, PNG, WAV, PNG[:60], WAV[:60]]))
    schemathesis.openapi.format("url-of-media", st.sampled_from([url, url[:90], "data:,", "http://127.0.0.1/x"]))


def narrow_document(document: dict[str, Any], file_id: str) -> dict[str, Any]:
    """``document`` reduced to quick requests; batches use the uploaded file ``file_id``."""
    schemas = {name: _narrow_schema(name, schema) for name, schema in document["components"]["schemas"].items()}
    for name in ("Url", "ImageUrl"):
        schemas[name]["properties"]["url"] = {"type": "string", "format": "url-of-media"}
    schemas["BatchRequest"]["properties"]["input_file_id"] = {"enum": [file_id]}
    return {**document, "components": {**document["components"], "schemas": schemas}}


def _narrow_schema(name: str, schema: Schema) -> Schema:
    result: Schema = _copy_supported(schema)
    if name in _BOUNDED:
        free = {key: _SEED if key == "seed" else result["properties"][key] for key in _FREE[name]}
        result["properties"] = {**free, **_BOUNDED[name]}
        names = [key for key in result.get("required", ()) if key in result["properties"]]
        result["required"] = sorted({*names, *_BOUNDED[name]})
        result["additionalProperties"] = False
    return result


def _copy_supported(node: Any) -> Any:
    """Copy of ``node`` without unsupported kinds."""
    if isinstance(node, list):
        return [_copy_supported(each) for each in node if not _is_refused(each)]
    if not isinstance(node, dict):
        return node
    return {key: _copy_supported(each) for key, each in node.items() if key not in ("discriminator", "default")}


def _is_refused(node: Any) -> bool:
    return isinstance(node, dict) and node.get("$ref", "").rsplit("/", 1)[-1] in _KINDS
