"""``omnibus env``: variables with which other tools find the running ``omnibus up``, for a shell to evaluate."""

import argparse
import shlex

from omnibus.up import runs


async def print_environment(_: argparse.Namespace) -> int:
    """Print ``export NATS_URL=...``, with the password of this run. Raises ``StageUnavailable`` when nothing runs."""
    print(f"export NATS_URL={shlex.quote(runs.read_state().nats_url)}")
    return 0
