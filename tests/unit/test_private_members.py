"""Members of nats-py and uvicorn that subclasses here use without documentation: each exists in the installed version.

pyproject.toml has upper bounds for both libraries. Raise a bound only if these tests pass with the new version.
"""

import ast
import inspect
import tomllib
from itertools import chain
from pathlib import Path
from textwrap import dedent

import pytest
import uvicorn
from nats.aio.client import Client
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from omnibus.bus.nats.connection import NatsConnection
from omnibus_gateway.http.connection import LimitedHttpProtocol
from omnibus_gateway.http.exchange import GatewayWebSocketProtocol
from omnibus_gateway.http.server import GatewayServer

ROOT = Path(__file__).parents[2]
SUBCLASSES = [
    (NatsConnection, Client),
    (LimitedHttpProtocol, HttpToolsProtocol),
    (GatewayWebSocketProtocol, WebSocketsSansIOProtocol),
    (GatewayServer, uvicorn.Server),
]


def own_attributes(cls: type, *contexts: type[ast.expr_context]) -> set[str]:
    """Return the attributes of ``self`` in ``cls``, in ``contexts`` (all without any)."""
    return {
        node.attr
        for node in ast.walk(ast.parse(dedent(inspect.getsource(cls))))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and isinstance(node.ctx, contexts or ast.expr_context)
    }


def library_members(cls: type) -> set[str]:
    """Return the methods of ``cls``, and the attributes that they assign."""
    parts = [part for part in cls.__mro__ if part.__module__.split(".")[0] in ("nats", "uvicorn")]
    return {*dir(cls)}.union(*(own_attributes(part, ast.Store) for part in parts))


@pytest.mark.parametrize(("cls", "base"), SUBCLASSES, ids=lambda cls: cls.__name__)
def test_members_that_a_subclass_reads_are_its_own_or_the_librarys(cls: type, base: type):
    own_names = own_attributes(cls, ast.Store) | {*vars(cls)}
    inherited_names = own_attributes(cls) - own_names

    assert inherited_names
    assert inherited_names - library_members(base) == set()


@pytest.mark.parametrize("library", ["nats-py", "uvicorn"])
def test_a_library_whose_private_members_are_used_has_an_upper_bound(library: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    bounds = [bound for bound in map(Requirement, lines) if bound.name == library]

    assert bounds
    assert all({one.operator for one in bound.specifier} >= {">=", "<"} for bound in bounds)
