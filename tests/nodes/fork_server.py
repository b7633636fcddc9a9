"""The fork server of a node.

    python -m tests.nodes.fork_server SOCKET MODULE...

Nodes have their own ``/proc``, while their services have process ids of the host. The fork server can therefore neither
count its threads there nor list its open files. ``tests/unit/up/test_fork_server.py`` tests that its modules start no
thread.
"""

import sys

from omnibus.up import fork_server

if __name__ == "__main__":
    fork_server.warn_of_threads = fork_server.warn_of_gpu_drivers = lambda: False
    fork_server.main(sys.argv[1:])
