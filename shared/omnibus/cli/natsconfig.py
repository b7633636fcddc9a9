"""``omnibus nats-config``: what a NATS server has to know of the users of Omnibus."""

import argparse
import json

from omnibus.bus import permissions


async def nats_config(options: argparse.Namespace) -> int:
    """Print the configuration, or with ``--json`` the permissions of each user."""
    if options.json:
        users = {
            user: {"publish": may.publish, "subscribe": may.subscribe, "allow_responses": {"max": -1, "expires": "10m"}}
            for user, may in permissions.permissions().items()
        }
        print(json.dumps(users, indent=2))
    else:
        print(permissions.config(port=options.port, store=options.store_dir, tls=options.tls), end="")
    return 0
