"""A template of apps' workers that forks them with their modules imported. They are children of the caller.

Run as a program with the descriptor of a socket. An order is one packet: environment and directory as JSON, with the
worker's output and link as descriptors. The reply is the worker's process id.
"""

import gc
import json
import os
import socket
import sys
import time
from typing import Any

from omnibus.app import worker

_MAX_ORDER_BYTES = 1 << 20
_REPARENT_POLL_SECONDS = 0.0005


def main(descriptor: int) -> None:
    """Fork a worker for each order until the socket closes."""
    gc.freeze()
    orders, client = socket.socket(fileno=descriptor), os.getppid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(orders, _MAX_ORDER_BYTES, 2)
        if not data:
            return
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                _become_worker(json.loads(data), *descriptors, orders, client)
            os._exit(0)  # so that the worker becomes a child of the client, which is a subreaper meanwhile
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _become_worker(order: dict[str, Any], output: int, link: int, orders: socket.socket, client: int) -> None:
    """Run as ``python -m omnibus.app.worker`` would when started by ``subprocess.Popen``."""
    while os.getppid() != client:
        time.sleep(_REPARENT_POLL_SECONDS)
    os.setsid()
    own = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:] = [*os.environ["PYTHONPATH"].split(os.pathsep), *(path for path in sys.path if path not in own)]
    os.chdir(order["directory"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, target)
    os.close(nothing)
    os.close(output)
    sys.argv = [str(worker.__file__), str(link)]
    orders.send(str(os.getpid()).encode())
    orders.close()
    sys.exit(worker.main(sys.argv[1:]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
