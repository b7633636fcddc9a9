"""Requests and responses of ``/v1/conversations``. Source: the types of the ``openai`` package, 3.52."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.parse import check_values, convert_json, invalid_request
from omnibus_gateway.openai.responses.items import InputItem
from omnibus_gateway.openai.responses.request import Metadata, name_message

PATH = "/v1/conversations"
CONVERSATION = f"{PATH}/{{conversation_id}}"
ITEMS = f"{CONVERSATION}/items"
ITEM = f"{ITEMS}/{{item_id}}"

#: Limit of the items that one request may add.
MAX_NEW_ITEMS = 20


class ConversationRequest(Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[InputItem], Meta(max_length=MAX_NEW_ITEMS)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    metadata: Metadata | None


class NewItems(Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_NEW_ITEMS)]


class ConversationObject(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class ConversationDeleted(Struct, frozen=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


def parse_conversation_body(body: bytes, kind: Any) -> Any:
    """Decode ``body`` as ``kind``, or {} if it is empty. Raises ``BadRequest`` with ``param``, and ``TooLarge``."""
    check_values(body)
    try:
        document = msgspec.json.decode(body or b"{}")
        if isinstance(document, dict) and isinstance(document.get("items"), list):
            document["items"] = [name_message(item) for item in document["items"]]
        return convert_json(document, kind)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), kind, document) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None
