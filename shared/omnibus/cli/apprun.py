"""``omnibus app run``: everything on this machine for one app, until it has answered or until Ctrl-C."""

import argparse
import asyncio
import io
import sys
from pathlib import Path

from omnibus.cli import targets
from omnibus.cli.apps import body, register, say
from omnibus.cli.check import load
from omnibus.cli.gateway import Gateway
from omnibus.cli.up import declarations
from omnibus.errors import OmnibusError, Rejected
from omnibus.up.logs import Log
from omnibus.up.stack import Stack


async def run_app(options: argparse.Namespace) -> int:
    """Start a stack, register the app, call it once if a request is given."""
    once = options.body is not None
    request = body(options.body)
    await load(options.target)  # what is wrong with it is said before everything starts
    root = targets.located(options.target)[1] if targets.is_file(options.target) else Path.cwd()
    quiet = io.StringIO()
    stack = Stack(
        await declarations(options),
        port=_port(options.port, once),
        apps_dir=root,
        log=Log(quiet) if once else None,
        nursery=not options.no_models,
    )
    try:
        async with stack:
            there = Gateway(stack.url, stack.admin_token, str(root))
            app = await asyncio.to_thread(register, there, options.target, None)
            if once:
                await asyncio.to_thread(say, there, app["name"], request, options.json)
                return 0
            print(
                f"\n{app['name']} is up: POST {stack.url}/v1/apps/{app['name']}/invoke   docs: {stack.url}/docs   "
                f"after a change: omnibus app update {app['name']}   stop: Ctrl-C\n",
                flush=True,
            )
            await stack.supervisor.run_until_signal()
    except OmnibusError as error:
        if not isinstance(error, Rejected):
            print(quiet.getvalue(), end="", file=sys.stderr)
        raise
    return 0


def _port(asked: int | None, once: bool) -> int:
    return asked if asked is not None else 0 if once else 8000
