"""Secrets in the encoding of Kubernetes' clients: protobuf after four magic bytes.

It covers only the fields that Helm stores.
"""

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\0"


def read_secret(body: bytes) -> dict[str, Any]:
    """The Secret in ``body`` as JSON would have it."""
    whole = dict(_read_fields(body.removeprefix(MAGIC)))
    result: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {}, "data": {}}
    for number, value in _read_fields(whole[2]):
        match number:
            case 1:
                result["metadata"] = _read_meta(value)
            case 2:
                name, data = _read_entry(value)
                result["data"][name.decode()] = base64.b64encode(data).decode()
            case 3:
                result["type"] = value.decode()
    return result


def _read_meta(body: bytes) -> dict[str, Any]:
    metadata: dict[str, Any] = {"labels": {}}
    for number, value in _read_fields(body):
        match number:
            case 1:
                metadata["name"] = value.decode()
            case 3:
                metadata["namespace"] = value.decode()
            case 6:
                metadata["resourceVersion"] = value.decode()
            case 11:
                key, label = _read_entry(value)
                metadata["labels"][key.decode()] = label.decode()
    return {key: value for key, value in metadata.items() if value}


def _read_entry(body: bytes) -> tuple[bytes, bytes]:
    fields = dict(_read_fields(body))
    return fields.get(1, b""), fields.get(2, b"")


def _read_fields(body: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(body):
        value: Any
        key, at = _read_varint(body, at)
        match key & 7:
            case 0:
                value, at = _read_varint(body, at)
            case 2:
                size, at = _read_varint(body, at)
                value, at = body[at : at + size], at + size
            case wire:
                raise ValueError(f"wire type {wire} at {at}")
        yield key >> 3, value


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
