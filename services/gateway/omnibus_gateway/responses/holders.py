"""Questions to other gateways: whether they still generate a response."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Literal

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.errors import DeadlineExceeded, NotFound

log = logging.getLogger(__name__)

#: Timeout of a gateway's answer, in seconds. After it, the gateway counts as failed.
_ANSWER_SECONDS = 2.0
#: Seconds before the retry for a gateway that a cluster of NATS servers may not know yet.
_CLUSTER_PAUSE_SECONDS = 0.5


class HolderQuestion(msgspec.Struct, frozen=True):
    """Question whether a gateway generates response ``id``. ``stop`` is the reason to end it, if any."""

    id: str
    stop: Literal["", "cancelled", "deleted"] = ""


class HolderAnswer(msgspec.Struct, frozen=True):
    held: bool


_encode = msgspec.json.Encoder().encode
_decode_question = msgspec.json.Decoder(HolderQuestion).decode
_decode_answer = msgspec.json.Decoder(HolderAnswer).decode


class Holders:
    """Sends questions to other gateways, and answers those to ``gateway`` with ``answer``."""

    def __init__(self, bus: Bus, gateway: str, answer: Callable[[HolderQuestion], bool]) -> None:
        self._bus = bus
        self._gateway = gateway
        self._answer = answer

    async def startup(self) -> None:
        await self._bus.add_responder(subjects.holder_subject(self._gateway), self._respond)

    async def _respond(self, delivery: Delivery) -> AsyncIterator[bytes]:
        try:
            question = _decode_question(delivery.data)
        except msgspec.MsgspecError as error:
            log.warning("cannot decode a question about a response: %s", error)
            return
        yield _encode(HolderAnswer(self._answer(question)))

    async def ask(self, holder: str, question: HolderQuestion) -> bool:
        """Ask gateway ``holder`` whether it generates the response. A missing gateway or a timeout is False.

        Raises ``BusUnavailable``.
        """
        if not holder:
            return False
        for last in (False, True):
            try:
                body = await self._bus.request(subjects.holder_subject(holder), _encode(question), _ANSWER_SECONDS)
                return _decode_answer(body).held
            except NotFound:
                if last or not self._bus.clustered:
                    return False
                await asyncio.sleep(_CLUSTER_PAUSE_SECONDS)
            except (DeadlineExceeded, msgspec.MsgspecError):
                return False
        return False
