"""The ``params`` input of both runners, checked."""

import re
from typing import Annotated, Any, TypeVar

import msgspec

from omnibus.errors import BadRequest, ContextTooLong
from omnibus_models.contract import TokenSamplingParams

P = TypeVar("P")
Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=2.0)]
Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Penalty = Annotated[float, msgspec.Meta(ge=0.01, le=10.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class TextGenerationParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of text generation. ``max_tokens`` None means the rest of the context, ``seed`` None the invocation's.

    With ``say`` nothing is generated: it is the answer, word for word, and the model only processes its tokens.
    """

    max_tokens: Count | None = None
    temperature: Temperature = 0.0
    top_p: Share = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    repetition_penalty: Penalty = 1.0
    stop: Annotated[tuple[Stop, ...], msgspec.Meta(max_length=16)] = ()
    seed: int | None = None
    ignore_eos: bool = False
    say: Annotated[str, msgspec.Meta(min_length=1, max_length=65536)] | None = None


class CodecGenerationParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of code generation. ``max_codes`` None means as many as the model allows."""

    max_codes: Count | None = None
    temperature: Temperature = 0.0
    top_p: Share = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    repetition_penalty: Penalty = 1.0
    seed: int | None = None


def read_params(params: Any, kind: type[P]) -> P:
    """``params`` as ``kind``. Raises ``BadRequest`` that names the field."""
    try:
        return msgspec.convert({} if params is None else params, kind)
    except msgspec.ValidationError as error:
        field = re.search(r"`\$\.(\w+)|field `(\w+)`", str(error))
        name = next(filter(None, field.groups()), "params") if field else "params"
        raise BadRequest(f"{name} cannot be used: {error}", param=name) from None


def max_answer_tokens(context: int, length: int, wanted: int | None) -> int:
    """Most tokens of an answer to a prompt of ``length`` tokens. Raises ``ContextTooLong``, ``BadRequest``."""
    left = context - length
    if left <= 0:
        raise ContextTooLong(
            f"the prompt has {length} tokens and the model's context {context}; send a shorter prompt",
            param="messages",
        )
    if wanted is not None and wanted > left:
        raise BadRequest(
            f"max_tokens is {wanted}, but after a prompt of {length} tokens the model's context of "
            f"{context} leaves {left}; send max_tokens of at most {left}",
            param="max_tokens",
        )
    return left if wanted is None else wanted


def build_sampling(params: TextGenerationParams | CodecGenerationParams, limit: int, seed: int) -> TokenSamplingParams:
    """The settings of one request; ``seed`` is the invocation's, for requests without their own."""
    return TokenSamplingParams(
        max_tokens=limit,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        repetition_penalty=params.repetition_penalty,
        seed=seed if params.seed is None else params.seed,
    )
