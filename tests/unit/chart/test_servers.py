"""The bundled servers as the chart configures them, with users and passwords."""

import base64
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import nats
import nats.errors
import pytest

from omnibus.bus import permissions
from omnibus.bus.nats import NatsBus
from omnibus.errors import StoreUnavailable
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus.up import infra
from omnibus.up import infra as binaries
from tests.kube.api import Object
from tests.unit.chart.shapes import SHAPES, Renders, read_env, select_kind

WITHIN = 30.0


@pytest.fixture(scope="module")
def objects(render_chart: Renders) -> list[Object]:
    return render_chart(SHAPES["as_it_is"])


@pytest.fixture(scope="module")
def secret_words(objects: list[Object]) -> dict[str, str]:
    """The contents of the secret."""
    (secret,) = select_kind(objects, "Secret").values()
    return {key: base64.b64decode(word).decode() for key, word in secret["data"].items()}


@pytest.fixture(scope="module")
def bus_url(objects: list[Object], secret_words: dict[str, str], tmp_path_factory, run_server) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("bus")
    server = infra.prepare_nats(directory)
    text, config = select_kind(objects, "ConfigMap")["om-nats"]["data"]["nats.conf"], directory / "nats.conf"
    here = {"port: 4222": server.ports[0], "http: 8222": server.ports[1], "store_dir: /data": directory}
    for line, value in here.items():
        assert f"{line}\n" in text
        text = text.replace(f"{line}\n", f"{line.partition(':')[0]}: {value}\n")
    config.write_text(text)
    spec = replace(server.spec, argv=(server.spec.argv[0], "-c", str(config)))
    variables = read_env(select_kind(objects, "StatefulSet")["om-nats"]["spec"]["template"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, secret_words[value["secretKeyRef"]["key"]])
        server = replace(server, spec=spec)
        with run_server(server):
            yield server.url


async def _ignore_error(_: Exception) -> None:
    """Ignore the error, which ``nats-py`` prints otherwise."""


async def test_each_user_comes_in_with_its_own_password_alone(bus_url: str, secret_words: dict[str, str]):
    for user in permissions.permissions_by_user():
        bus = await NatsBus.connect(BusSettings(url=bus_url, user=user, password=secret_words[user]), user)
        assert bus.connected
        await bus.drain()
    # Services retry until their time is up; a client with one attempt does not depend on this machine's speed.
    for credentials in ({"user": "gateway", "password": secret_words["llm"]}, {}):
        with pytest.raises(nats.errors.Error, match="(?i)authorization"):
            await nats.connect(
                bus_url, allow_reconnect=False, connect_timeout=60, error_cb=_ignore_error, **credentials
            )


async def test_a_gateway_finds_room_for_the_record(bus_url: str, secret_words: dict[str, str]):
    bus = await NatsBus.connect(BusSettings(url=bus_url, user="gateway", password=secret_words["gateway"]), "gateway")

    settings = BusSettings()
    await bus.open_records(settings.record_seconds, settings.record_bytes)
    await bus.drain()


@pytest.fixture(scope="module")
def store_url(objects: list[Object], secret_words: dict[str, str], tmp_path_factory, run_server) -> Iterator[str]:
    """The store's URL as gateways receive it, except for the host."""
    directory = tmp_path_factory.mktemp("store")
    server = infra.prepare_valkey(directory)
    (port,) = server.ports
    bin = directory / "bin"
    bin.mkdir()
    (bin / "valkey-server").symlink_to(binaries.find_binary(binaries.VALKEY))
    template = select_kind(objects, "StatefulSet")["om-valkey"]["spec"]["template"]
    shell, option, script = template["spec"]["containers"][0]["command"]
    assert "\ndir /data\n" in script
    script = script.replace("\ndir /data\n", f"\ndir {directory}\nport {port}\nbind 127.0.0.1\n")
    spec = replace(server.spec, argv=(shell, option, script), ready=partial(infra.valkey_ready, port))
    url_template = read_env(select_kind(objects, "Deployment")["om-gateway"]["spec"]["template"])["OMNIBUS_STORE_URL"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORE_PASSWORD", secret_words["store"])
        patch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
        with run_server(replace(server, spec=spec)):
            yield url_template.replace("$(STORE_PASSWORD)", secret_words["store"]).replace(
                "om-valkey:6379", f"127.0.0.1:{port}"
            )


async def test_the_store_is_open_to_who_knows_its_password(store_url: str, secret_words: dict[str, str]):
    store = Store(StoreSettings(url=store_url))
    assert await store.epoch() == 0
    await store.close()

    stranger = Store(StoreSettings(url=store_url.replace(secret_words["store"], "guessed")))
    with pytest.raises(StoreUnavailable):
        await stranger.epoch()
    await stranger.close()


def test_no_list_of_processes_shows_the_password(objects: list[Object], secret_words: dict[str, str]):
    container = select_kind(objects, "StatefulSet")["om-valkey"]["spec"]["template"]["spec"]["containers"][0]

    assert secret_words["store"] not in str(container)
    assert Path(container["volumeMounts"][0]["mountPath"]) == Path("/data")
