"""``omnibus env``: prints variables for other tools to find the running ``omnibus up``, for a shell to evaluate."""

import argparse
import shlex

from omnibus.cli.output import print_json
from omnibus.up import runs


async def print_environment(options: argparse.Namespace) -> int:
    """Print ``export NATS_URL=...``, with the password of this run. Raises ``StageUnavailable`` if nothing runs."""
    variables = {"NATS_URL": runs.read_state().nats_url}
    if options.json:
        print_json(variables)
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
    return 0
