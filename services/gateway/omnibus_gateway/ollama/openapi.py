"""The routes of Ollama's API in the OpenAPI document."""

from typing import Any

import msgspec

from omnibus_gateway.ollama import wire
from omnibus_gateway.openai.openapi_routes import FAILURES, REF, json_content, operation, schema_ref

_BODIES = {
    wire.CHAT: ("answer_ollama_chat", "Answer a conversation.", wire.OllamaChatRequest, wire.OllamaAnswer),
    wire.GENERATE: ("answer_ollama_prompt", "Answer a single prompt.", wire.GenerateRequest, wire.OllamaAnswer),
    wire.EMBED: ("embed_ollama_texts", "Compute vectors of texts.", wire.EmbedRequest, wire.EmbedResponse),
    wire.EMBEDDINGS: (
        "embed_ollama_prompt", "Compute the vector of a text.", wire.PromptEmbeddingRequest, wire.PromptEmbedding,
    ),
    wire.SHOW: ("show_ollama_model", "Describe a model.", wire.ShowRequest, wire.ShowResponse),
}  # fmt: skip


def ollama_components() -> dict[str, Any]:
    """Return the schemas by name, for ``components.schemas``."""
    shapes = [shape for *_, request, response in _BODIES.values() for shape in (request, response)]
    return msgspec.json.schema_components([*shapes, wire.Tags, wire.OllamaError], ref_template=REF)[1]


def ollama_paths() -> dict[str, Any]:
    """Return the path items."""
    posts = {
        path: {"post": _describe(id, summary, response.__name__, request.__name__)}
        for path, (id, summary, request, response) in _BODIES.items()
    }
    return {
        **posts,
        wire.TAGS: {"get": _describe("list_ollama_models", "List the models.", "Tags")},
        wire.RUNNING: {"get": _describe("list_ollama_running", "List the models in memory, which all are.", "Tags")},
    }


def _describe(id: str, summary: str, response: str, request: str = "") -> dict[str, Any]:
    content = json_content(response)
    if response == wire.OllamaAnswer.__name__:
        content["application/x-ndjson"] = {"schema": schema_ref(response)}
    failures = {
        status: {"description": text, "content": json_content(wire.OllamaError.__name__)}
        for status, text in FAILURES.items()
    }
    described = operation(
        id, summary, "Ollama", {"200": {"description": "The answer.", "content": content}, **failures}
    )
    return {**described, "requestBody": {"required": True, "content": json_content(request)}} if request else described
