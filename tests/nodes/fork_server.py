"""The fork server of a node: ``python -m tests.nodes.fork_server SOCKET MODULE...``.

Nodes have their own ``/proc`` while their services have process ids of the outside, so it cannot count its threads there.
That its modules start none is tested elsewhere: ``tests/unit/up/test_fork_server.py``.
"""

import sys

from omnibus.up import fork_server

if __name__ == "__main__":
    fork_server.warn_of_threads = lambda: False
    fork_server.main(sys.argv[1:])
