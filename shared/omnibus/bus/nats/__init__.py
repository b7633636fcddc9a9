"""The bus on NATS. Only this package uses nats-py.

Requires a server of at least version 2.12, because older ones accept and ignore per-message deduplication and micro
features that Omnibus relies on.
"""

from omnibus.bus.nats.bus import NatsBus
from omnibus.bus.nats.connection import BusRefused

__all__ = ["BusRefused", "NatsBus"]
