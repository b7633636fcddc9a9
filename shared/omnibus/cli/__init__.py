"""The ``omnibus`` command: ``up``, ``demo``, ``tail``, ``show``, ``replay``."""

from omnibus.cli.main import main

__all__ = ["main"]
