"""The ``omnibus`` command: ``up``, ``demo``, ``app``, ``tasks``, ``plan``, ``models``, ``profile``, ``top``,
``tail``, ``show``, ``replay``."""

from omnibus.cli.main import main

__all__ = ["main"]
