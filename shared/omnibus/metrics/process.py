"""Metrics that every service exports."""

from prometheus_client import Gauge

from omnibus.metrics.collectors import REGISTRY, CallbackMetric


class _Process:
    """Metrics of every service."""

    #: Whether the connection to NATS is up, and the number of reconnects. Work in flight during one ran again.
    bus = CallbackMetric("omnibus_bus_connected", "Whether NATS is there.")
    reconnects = CallbackMetric("omnibus_bus_reconnects_total", "Times that the connection was restored.")
    #: Messages and bytes to and from NATS.
    messages = CallbackMetric("omnibus_bus_messages_total", "Messages.", ["direction"])
    bytes = CallbackMetric("omnibus_bus_bytes_total", "Bytes.", ["direction"])
    #: 1 from the start of the service until it drains.
    ready = Gauge("omnibus_ready", "Whether this service is ready.", ["service"], registry=REGISTRY)
    #: Always 1; the version of this process.
    build = Gauge("omnibus_build_info", "This build.", ["service", "version"], registry=REGISTRY)


PROCESS = _Process()
