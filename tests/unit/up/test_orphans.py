"""A killed supervisor takes all its processes with it."""

import json
import signal
import subprocess
import sys

import pytest

from tests.unit.up.programs import all_gone

UP = """
import asyncio, json, signal, sys, tempfile
from pathlib import Path
import uvloop
from omnibus.up import infra
from omnibus.process.spec import ProcessSpec
from omnibus.up.supervisor import Supervisor

async def main(directory):
    bus, store = infra.prepare_nats(directory), infra.prepare_valkey(directory)
    sleeper = ProcessSpec("sleeper", (sys.executable, "-c", "import time; time.sleep(1000)"), after=("nats", "valkey"))
    async with Supervisor([bus.spec, store.spec, sleeper]) as supervisor:
        print(json.dumps(supervisor.pids), flush=True)
        await supervisor.run_until_signal()

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
with tempfile.TemporaryDirectory() as name:
    {"asyncio": asyncio.run, "uvloop": uvloop.run}[sys.argv[1]](main(Path(name)))
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_child_outlives_its_supervisor(loop, number):
    with subprocess.Popen(
        [sys.executable, "-c", UP, loop], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as supervisor:
        assert supervisor.stdout is not None
        pids = list(json.loads(supervisor.stdout.readline()).values())
        assert len(pids) == 3

        supervisor.send_signal(number)
        code = supervisor.wait(20)

    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    assert all_gone(pids)
