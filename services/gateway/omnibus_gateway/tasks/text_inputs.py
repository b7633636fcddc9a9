"""Texts and media as inputs of a task: texts in its invocation, media and long texts in the arena."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from omnibus.errors import TooLarge
from omnibus_gateway.media.inspect import InspectedMedia
from omnibus_gateway.request.arena_inputs import MAX_READERS, place_input
from omnibus_gateway.request.factory import RequestFactory
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.prepared_chat import MAX_INLINE_BYTES

_encode = msgspec.json.Encoder().encode


async def place_texts(
    runs: RequestFactory, run: ClientRequest, texts: Sequence[Any], param: str, max_bytes: int
) -> tuple[Any, int]:
    """Return the literal of ``texts`` and the bytes of their JSON.

    Raises ``TooLarge`` with ``param`` for more than ``max_bytes``.
    """
    body = _encode(texts)
    if len(body) > max_bytes:
        raise TooLarge(f"the texts have {len(body)} bytes, the limit is {max_bytes}", param=param)
    if len(body) <= MAX_INLINE_BYTES:
        return msgspec.Raw(body), len(body)
    content_info = ("text", "application/json", sha256(body).hexdigest())
    literal = await place_input(
        runs.tensors, run.kept, body, content_info, run.inputs_name, run.deadline, MAX_READERS, run.salt
    )
    return literal, len(body)


async def place_media(runs: RequestFactory, run: ClientRequest, item: InspectedMedia) -> dict[str, Any]:
    """Put ``item`` into the arena for ``run``; return its literal."""
    content_info = (item.info.modality, item.info.mime, item.info.sha256)
    return await place_input(
        runs.tensors, run.kept, item.data, content_info, run.inputs_name, run.deadline, MAX_READERS, run.salt
    )


async def await_result(result: Any) -> Any:
    """Return an output of a task."""
    return await result
