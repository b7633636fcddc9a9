"""Formats of Ollama's API. Source: the types of the ``ollama`` package, 0.6.

Unknown fields are an error at every level, but options that only tune Ollama's own server are accepted and ignored.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus_gateway.openai.chat_request import (
    MAX_TOP_LOGPROBS,
    Penalty,
    Presence,
    Share,
    Temperature,
)
from omnibus_gateway.openai.chat_response import TokenLogprob
from omnibus_gateway.openai.options import MAX_TOOLS, FunctionTool, Id, Name

PREFIX = "/api/"
CHAT, GENERATE, EMBED, EMBEDDINGS, SHOW = (
    PREFIX + name for name in ("chat", "generate", "embed", "embeddings", "show")
)
TAGS, RUNNING, VERSION = (PREFIX + name for name in ("tags", "ps", "version"))
#: Limit of the stop strings of one request.
MAX_STOPS = 16

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
ImageData = Annotated[str, Meta(min_length=1)]


class OllamaOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling options. A ``num_predict`` below 1 means no limit of its own."""

    temperature: Temperature | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_p: Share | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    stop: str | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=MAX_STOPS)] | None = None
    repeat_penalty: Penalty | None = None
    presence_penalty: Presence | None = None
    frequency_penalty: Presence | None = None

    # Accepted and ignored: they place a model in memory, or tune the sampler of Ollama's own server.
    numa: Any = None
    num_ctx: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    vocab_only: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    embedding_only: Any = None
    num_thread: Any = None
    num_keep: Any = None
    repeat_last_n: Any = None
    penalize_newline: Any = None


class AnswerRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of all requests for an answer. Answers are streamed unless ``stream`` is false."""

    model: ModelName
    stream: bool | None = None
    options: OllamaOptions | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    keep_alive: float | str | None = None  # accepted and ignored: the planner keeps models loaded


class OllamaFunction(Struct, frozen=True):
    """A call. ``arguments`` is a JSON object, not its text."""

    name: Name
    arguments: dict[str, Any]
    index: int | UnsetType = UNSET


class OllamaCall(Struct, frozen=True):
    function: OllamaFunction
    id: Id | UnsetType = UNSET


class ChatTurn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message. Calls and results are matched by id, by the tool's name, or by their order."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[ImageData], Meta(max_length=1024)] | None = None
    tool_calls: Annotated[list[OllamaCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_name: str | None = None
    tool_call_id: Id | None = None


class OllamaChatRequest(AnswerRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation. Without messages, the response only says that the model is loaded."""

    messages: Annotated[list[ChatTurn], Meta(max_length=2048)] | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None


class GenerateRequest(AnswerRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt for one answer. Without a prompt, the response only says that the model is loaded."""

    prompt: str | None = None
    system: str | None = None
    images: Annotated[list[ImageData], Meta(max_length=1024)] | None = None

    # Rejected unless empty.
    suffix: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: list[int] | None = None


class EmbedRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed. Longer texts than the model's context are rejected."""

    model: ModelName
    input: str | list[str]
    dimensions: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    truncate: bool | None = None  # accepted and ignored
    options: OllamaOptions | None = None  # accepted and ignored, as the next one
    keep_alive: float | str | None = None


class PromptEmbeddingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text to embed, in the format before ``EmbedRequest``."""

    model: ModelName
    prompt: Annotated[str, Meta(min_length=1)]
    options: OllamaOptions | None = None
    keep_alive: float | str | None = None


class ShowRequest(Struct, frozen=True, kw_only=True):
    """A question about a model; its name is in either field."""

    model: str = ""
    name: str = ""
    verbose: bool | None = None


class AnswerTurn(Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"]
    content: str
    thinking: str = ""
    tool_calls: list[OllamaCall] = []


class OllamaAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A complete answer, or one line of a stream; a chat has a ``message``, another answer a ``response``.

    Token counts and durations, in nanoseconds, are in the last line. The prompt's duration ends with the first output.
    """

    model: str
    created_at: str
    done: bool
    message: AnswerTurn | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str = ""
    logprobs: list[TokenLogprob] = []
    done_reason: str = ""
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class EmbedResponse(Struct, frozen=True):
    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int


class PromptEmbedding(Struct, frozen=True):
    embedding: list[float]


class ModelDetails(Struct, frozen=True):
    family: str
    format: str = ""
    parent_model: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class Tag(Struct, frozen=True):
    """A model. Sizes and digests of checkpoints are not known to a gateway."""

    name: str
    model: str
    modified_at: str
    details: ModelDetails
    size: int = 0
    digest: str = ""


class Tags(Struct, frozen=True):
    models: list[Tag]


class ShowResponse(Struct, frozen=True):
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    parameters: str = ""
    template: str = ""


class OllamaError(Struct, frozen=True):
    error: str
