"""App sources that clients may name, and those this gateway rejects."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnibus.app_record import AppSource
from omnibus.errors import BadRequest, Forbidden
from omnibus.settings import GatewaySettings
from omnibus_gateway.apps import source_policy


@pytest.fixture
def settings(tmp_path: Path) -> GatewaySettings:
    """Settings that allow everything, with apps in ``<tmp_path>/apps``."""
    (tmp_path / "apps" / "team").mkdir(parents=True)
    return GatewaySettings(apps_dir=str(tmp_path / "apps"), app_uploads=True)


def parse_submission(settings: GatewaySettings, **source: Any) -> source_policy.SubmittedSource | None:
    return source_policy.parse_source(source_policy.parse_request(json.dumps({"source": source}).encode()), settings)


def test_an_installed_module_is_named(settings: GatewaySettings):
    assert parse_submission(settings, module="company.poems") == (AppSource("import", "company.poems"), "")


def test_the_app_of_a_plugin_is_named(settings: GatewaySettings):
    assert parse_submission(settings, module="nice-poems") == (AppSource("import", "nice-poems"), "")


@pytest.mark.parametrize(("directory", "below"), [("team", "team"), (".", ""), ("./team/../team", "team"), ("", "")])
def test_a_directory_lies_below_that_of_the_apps(settings: GatewaySettings, directory: str, below: str):
    submission = parse_submission(settings, module="poems", directory=directory)

    assert submission == (AppSource("directory", "poems", str(Path(settings.apps_dir) / below)), "")


def test_a_text_comes_with_a_name(settings: GatewaySettings):
    assert parse_submission(settings, upload="x = 1", name="poems") == (AppSource("upload", "poems"), "x = 1")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"source": null}'])
def test_no_source_is_none(settings: GatewaySettings, body: bytes):
    assert source_policy.parse_source(source_policy.parse_request(body), settings) is None


@pytest.mark.parametrize("directory", ["..", "../other", "/", "/etc", "team/../../other", "link"])
def test_a_directory_elsewhere_is_refused(settings: GatewaySettings, tmp_path: Path, directory: str):
    (tmp_path / "other").mkdir()
    (tmp_path / "apps" / "link").symlink_to(tmp_path / "other")

    with pytest.raises(Forbidden, match="not below OMNIBUS_GATEWAY_APPS_DIR"):
        parse_submission(settings, module="poems", directory=directory)


@pytest.mark.parametrize("directory", ["none", "file", "x" * 5000, "nul\0", "circle"])
def test_a_directory_that_is_none_is_said(settings: GatewaySettings, tmp_path: Path, directory: str):
    (tmp_path / "apps" / "file").write_text("")
    (tmp_path / "apps" / "circle").symlink_to(tmp_path / "apps" / "circle")

    with pytest.raises((BadRequest, Forbidden)):
        parse_submission(settings, module="poems", directory=directory)


@pytest.mark.parametrize(
    ("source", "variable"),
    [
        ({"module": "poems", "directory": "team"}, "OMNIBUS_GATEWAY_APPS_DIR"),
        ({"upload": "x = 1", "name": "poems"}, "OMNIBUS_GATEWAY_APP_UPLOADS"),
    ],
)
def test_what_is_switched_off_names_its_setting(source: dict[str, str], variable: str):
    with pytest.raises(Forbidden, match=variable):
        parse_submission(GatewaySettings(), **source)


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ({}, "source.module"),
        ({"directory": "team"}, "source.module"),
        ({"module": ""}, "source.module"),
        ({"module": "a/b"}, "source.module"),
        ({"module": "../poems"}, "source.module"),
        ({"module": "a b"}, "source.module"),
        ({"module": "m" * 201}, "source.module"),
        ({"module": "two-words", "directory": "team"}, "source.module"),
        ({"module": "poems", "name": "other"}, "source.name"),
        ({"upload": "x = 1"}, "source.name"),
        ({"upload": " \n", "name": "poems"}, "source.upload"),
        ({"upload": "x = 1", "name": "po/ems"}, "source.name"),
        ({"upload": "x = 1", "name": "poems", "module": "poems"}, "source"),
        ({"colour": "blue"}, "source"),
        ({"module": 7}, "source"),
    ],
)
def test_what_is_no_source_is_400_that_names_the_place(settings: GatewaySettings, source: Any, param: str):
    with pytest.raises(BadRequest) as caught:
        parse_submission(settings, **source)

    assert caught.value.param == param


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b'{"other": 1}'])
def test_what_is_no_request_is_400(settings: GatewaySettings, body: bytes):
    with pytest.raises(BadRequest):
        source_policy.parse_source(source_policy.parse_request(body), settings)


def test_a_registered_source_must_be_allowed_here_as_well(settings: GatewaySettings, tmp_path: Path):
    here = AppSource("directory", "poems", str(tmp_path / "apps" / "team"))

    source_policy.check_allowed(here, settings)
    source_policy.check_allowed(AppSource("import", "poems"), GatewaySettings())
    for source in (here, AppSource("upload", "poems", sha256="0" * 64)):
        with pytest.raises(Forbidden):
            source_policy.check_allowed(source, GatewaySettings())


def test_a_directory_is_shown_from_that_of_the_apps(settings: GatewaySettings, tmp_path: Path):
    here = AppSource("directory", "poems", str(tmp_path / "apps" / "team"))

    assert source_policy.relative_directory(here, settings) == "team"
    assert source_policy.relative_directory(here, GatewaySettings()) == ""
    assert source_policy.relative_directory(here, GatewaySettings(apps_dir=str(tmp_path / "other"))) == ""
