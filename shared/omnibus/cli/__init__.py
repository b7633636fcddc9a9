"""The ``omnibus`` command: ``up``, ``demo``, ``app``, ``tasks``, ``plan``, ``models``, ``profile``, ``top``,
``tail``, ``show``, ``replay``."""

try:
    from omnibus.cli.main import main
except KeyboardInterrupt:  # Ctrl-C while modules are imported
    raise SystemExit(130) from None

__all__ = ["main"]
