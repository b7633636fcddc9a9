"""Validation of JSON schemas in requests, before any other work for them.

Results are cached. If a check takes too long, the schema is rejected and the process of the check is killed. No client
can block the others for longer than that. Tenants take turns, and the queue of each tenant is bounded.
"""

import asyncio
import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import Any

import msgspec

from omnibus.errors import BadRequest, Overloaded
from omnibus.structured.grammar import MAX_SCHEMA_BYTES, first_line
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.options import GUIDED, JsonSchemaFormat, vllm_shape
from omnibus_gateway.tenancy.body_budget import TenantSlots
from omnibus_gateway.tenancy.tenant import current_tenant

log = logging.getLogger(__name__)

#: Seconds for the check of one schema, for the start of the process, and in the queue.
CHECK_SECONDS, START_SECONDS, QUEUE_SECONDS = 0.9, 20.0, 10.0
#: Number of cached results, and of waiting checks per tenant: more would time out.
MAX_REMEMBERED, MAX_WAITING = 1024, 16


class SchemaCheck:
    """Checks schemas in a separate process, started with the first one."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turns = TenantSlots(1, queue=MAX_WAITING)
        self._errors: OrderedDict[bytes, str] = OrderedDict()

    async def check_request(self, request: ChatRequest) -> None:
        """Check the schemas of ``request``. Raises ``BadRequest`` that names an unusable one."""
        for param, schema in _named_schemas(request):
            await self.check_schema(schema, param)
        if request.has_vllm_shape:
            await self._check_shape(request)

    async def _check_shape(self, request: ChatRequest) -> None:
        shape = vllm_shape(request)
        if shape is None:
            return
        param = next(name for name in ("structured_outputs", *GUIDED) if getattr(request, name) is not None)
        if "json" in shape:
            await self.check_schema(shape["json"], f"{param}.json" if param == "structured_outputs" else param)
            return
        await self._check_answer_shape(shape, param)

    async def check_schema(self, schema: Mapping[str, Any], param: str) -> None:
        """Check ``schema``. Raises ``BadRequest``, and ``Overloaded`` if too many are waiting."""
        await self._check_answer_shape({"json": schema}, param)

    async def _check_answer_shape(self, shape: Mapping[str, Any], param: str) -> None:
        body = msgspec.json.encode(shape)  # the answer has the same order of keys
        if len(body) > MAX_SCHEMA_BYTES:
            raise BadRequest(f"The schema has more than {MAX_SCHEMA_BYTES} bytes, the most accepted.", param=param)
        key = sha256(body).digest()
        if key not in self._errors:
            self._remember(key, await self._find_error(body, key))
        if error := self._errors[key]:
            raise BadRequest(f"The schema cannot be used: {error}", param=param)

    def _remember(self, key: bytes, error: str) -> None:
        self._errors[key] = error
        if len(self._errors) > MAX_REMEMBERED:
            self._errors.popitem(last=False)

    async def _find_error(self, shape: bytes, key: bytes) -> str:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(QUEUE_SECONDS):
                    await stack.enter_async_context(self._turns.hold(current_tenant().name))
            except TimeoutError:
                raise Overloaded("too many schemas are waiting for their check: try again", retry_after=1.0) from None
            if key in self._errors:  # another request had the same schema
                return self._errors[key]
            process = await self._running()
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    return first_line(found) if (found := await self._ask(process, shape)) else ""
            except TimeoutError:
                await self.close()
                return "it takes too long to compile: send a simpler one"
            except BaseException:  # otherwise the next check would read the answer of this one
                await self.close()
                raise

    async def _ask(self, process: asyncio.subprocess.Process, shape: bytes) -> str:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - for the type checker
        process.stdin.write(shape + b"\n")
        await process.stdin.drain()
        return str(json.loads(await process.stdout.readline() or '"its check has failed"'))

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            command = (sys.executable, "-m", "omnibus.structured.worker")
            process = self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
            assert process.stdout is not None  # noqa: S101 - for the type checker
            async with asyncio.timeout(START_SECONDS):
                await process.stdout.readline()
        return self._process

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await asyncio.sleep(0)  # lets its pipes close


def _named_schemas(request: ChatRequest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parameters and schemas that constrain the answer."""
    if isinstance(request.response_format, JsonSchemaFormat):
        yield "response_format.json_schema.schema", request.response_format.json_schema.schema or {}
    if request.calls_required or request.response_format is not None:  # then the grammar contains the calls
        for index, tool in enumerate(request.tools or ()):
            if tool.function.parameters:
                yield f"tools[{index}].function.parameters", tool.function.parameters
