"""Checks of schemas that requests bring, before anything is done for them.

A schema that can be used is known at once the next time. One that takes too long is refused, and the process that
checks it is ended: no client holds up others for more than that.
"""

import asyncio
import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from omnibus.errors import BadRequest, Overloaded
from omnibus.structured.grammar import MAX_SCHEMA_BYTES, first_line, schema_rule
from omnibus.structured.shapes import whole_grammar
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.tools import JsonSchemaFormat
from services.gateway.openai.vllm_params import GUIDED, vllm_shape

log = logging.getLogger(__name__)

#: Seconds that the check of one schema may take, those until its process runs, and those in a queue behind others.
CHECK_SECONDS, START_SECONDS, QUEUE_SECONDS = 0.9, 20.0, 10.0
#: Schemas whose checks are remembered.
MAX_REMEMBERED = 1024


class SchemaCheck:
    """Checks schemas in a process of its own, which is started with the first one."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._errors: OrderedDict[bytes, str] = OrderedDict()

    async def check_request(self, request: ChatRequest) -> None:
        """Raises ``BadRequest`` that names a schema of ``request`` which no answer can be held to."""
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
        try:
            grammar = await asyncio.to_thread(whole_grammar, shape)
        except ValueError as error:
            raise BadRequest(f"The grammar cannot be read: {error}", param=param) from None
        await self._check_grammar(grammar, param)

    async def check_schema(self, schema: Mapping[str, Any], param: str) -> None:
        """Raises ``BadRequest`` for a ``schema`` that cannot be used, and ``Overloaded`` where many are checked."""
        await self._check_grammar(f"start: {schema_rule(schema)}", param)

    async def _check_grammar(self, grammar: str, param: str) -> None:
        if len(grammar) > MAX_SCHEMA_BYTES:
            raise BadRequest(f"The schema has more than {MAX_SCHEMA_BYTES} bytes, the most accepted.", param=param)
        key = sha256(grammar.encode()).digest()
        if key not in self._errors:
            self._remember(key, await self._find_error(grammar))
        if error := self._errors[key]:
            raise BadRequest(f"The schema cannot be used: {error}", param=param)

    def _remember(self, key: bytes, error: str) -> None:
        self._errors[key] = error
        if len(self._errors) > MAX_REMEMBERED:
            self._errors.popitem(last=False)

    async def _find_error(self, grammar: str) -> str:
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise Overloaded("many schemas are checked just now: try again", retry_after=1.0) from None
        try:
            process = await self._running()
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    return first_line(found) if (found := await self._ask(process, grammar)) else ""
            except TimeoutError:
                await self.close()
                return "it takes too long to compile: send a simpler one"
            except BaseException:  # its answer would be taken for that to the next one
                await self.close()
                raise
        finally:
            self._turn.release()

    async def _ask(self, process: asyncio.subprocess.Process, grammar: str) -> str:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - for the type checker
        process.stdin.write(json.dumps(grammar).encode() + b"\n")
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
            await asyncio.sleep(0)  # its pipes are closed behind it


def _named_schemas(request: ChatRequest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Schemas that the answer has to hold to, and their parameters."""
    if isinstance(request.response_format, JsonSchemaFormat):
        yield "response_format.json_schema.schema", request.response_format.json_schema.schema or {}
    if request.calls_required:
        for index, tool in enumerate(request.tools or ()):
            if tool.function.parameters:
                yield f"tools[{index}].function.parameters", tool.function.parameters
