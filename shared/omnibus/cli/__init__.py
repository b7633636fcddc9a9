"""The ``omnibus`` command: ``up``, ``demo``, ``app``, ``tasks``, ``plan``, ``profile``, ``top``, ``tail``, ``show``,
``replay``."""

from omnibus.cli.main import main

__all__ = ["main"]
