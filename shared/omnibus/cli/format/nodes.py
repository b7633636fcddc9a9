"""Nodes and links of ``omnibus top``, as lines for people."""

from collections.abc import Iterator
from typing import Any

from omnibus.cli.format.plan import age_text
from omnibus.cli.format.tables import column_lines, size_text
from omnibus.cluster.monitor.snapshot import SystemState
from omnibus.cluster.monitor.to_json import node_values
from omnibus.cluster.nodes import NodeLink

#: Characters always shown of the name of a node or link: names of machines differ at their ends.
_NAME_CHARS = 60


def node_lines(system: SystemState, width: int) -> Iterator[str]:
    """Yield tables of nodes and links, nothing for fewer than two nodes."""
    nodes = node_values(system)
    if len(nodes) < 2:
        return
    yield ""
    head = ["NODES", "state", "started", "arena used", "executors", "gateways", "  address"]
    yield from column_lines(head, [_node_row(node) for node in nodes], width, words=1, least=_NAME_CHARS)
    links = system.nodes.links()
    if links:
        yield ""
        head = ["LINKS", "now", "in all", "at", "  state"]
        yield from column_lines(head, [_link_row(link) for link in links], width, words=1, least=_NAME_CHARS)


def _node_row(node: dict[str, Any]) -> list[str]:
    arena = f"{node['used'] / node['size']:.0%} of {size_text(node['size'])}" if node["size"] else "-"
    transport = "" if node["transport"] in ("", "tcp") else f" ({node['transport'].upper()})"
    address = f"  {node['address']}{transport}"
    return [
        node["node"],
        node["state"],
        age_text(node["started"]) if node["started"] else "-",
        arena,
        str(len(node["executors"])),
        str(len(node["gateways"])),
        address.rstrip(),
    ]


def _link_row(link: NodeLink) -> list[str]:
    speed = f"{size_text(link.nbytes / link.seconds)}/s" if link.seconds else "-"
    return [
        f"{link.source} → {link.reader}",
        "-" if link.rate is None else f"{size_text(link.rate)}/s",
        size_text(link.nbytes),
        speed,
        "  unreachable" if link.unreachable else "  ok",
    ]
