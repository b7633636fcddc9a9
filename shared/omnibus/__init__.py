"""Omnibus serves any-to-any multimodal models as small services on a message bus.

Import from the packages: ``omnibus.task`` (write models), ``omnibus.plan``, ``omnibus.graph``, ``omnibus.bus``,
``omnibus.tensors``, ``omnibus.executor`` (write engines), ``omnibus.errors``.
"""

__version__ = "0.1.0"
