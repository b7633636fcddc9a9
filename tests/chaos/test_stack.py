"""Processes of a system and the roles that they play, as the fault injector tells them apart."""

import subprocess
import sys

import psutil

from tests.chaos.stack import is_forked, plays

_FORKING = "import os, sys, time; print(os.fork(), flush=True); time.sleep(60)"


def test_what_a_fork_server_bears_is_not_taken_for_it():
    server = subprocess.Popen([sys.executable, "-c", _FORKING, "omnibus.up.fork_server"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        [child] = psutil.Process(server.pid).children()
        commands = [psutil.Process(server.pid).cmdline(), child.cmdline()]

        assert all(plays(command, "fork-server") for command in commands)
        assert not is_forked(psutil.Process(server.pid))
        assert is_forked(child)
        child.kill()
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
