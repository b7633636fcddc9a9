"""Secrets in the encoding of Kubernetes' clients: protobuf after four magic bytes.

It covers only the fields that Helm stores.
"""

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\0"


def secret(body: bytes) -> dict[str, Any]:
    """The Secret in ``body`` as JSON would have it."""
    whole = dict(_fields(body.removeprefix(MAGIC)))
    found: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {}, "data": {}}
    for number, value in _fields(whole[2]):
        match number:
            case 1:
                found["metadata"] = _meta(value)
            case 2:
                name, data = _entry(value)
                found["data"][name.decode()] = base64.b64encode(data).decode()
            case 3:
                found["type"] = value.decode()
    return found


def _meta(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"labels": {}}
    for number, value in _fields(body):
        match number:
            case 1:
                found["name"] = value.decode()
            case 3:
                found["namespace"] = value.decode()
            case 6:
                found["resourceVersion"] = value.decode()
            case 11:
                key, said = _entry(value)
                found["labels"][key.decode()] = said.decode()
    return {key: value for key, value in found.items() if value}


def _entry(body: bytes) -> tuple[bytes, bytes]:
    both = dict(_fields(body))
    return both.get(1, b""), both.get(2, b"")


def _fields(body: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(body):
        value: Any
        key, at = _varint(body, at)
        match key & 7:
            case 0:
                value, at = _varint(body, at)
            case 2:
                size, at = _varint(body, at)
                value, at = body[at : at + size], at + size
            case wire:
                raise ValueError(f"wire type {wire} at {at}")
        yield key >> 3, value


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
