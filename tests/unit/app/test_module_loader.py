"""Loading an app only from its source, and errors in it."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.app.module_loader import DIRECTORY, IMPORT, UPLOAD, load_module
from omnibus.app_record import AppSource
from omnibus.errors import BadRequest

GOOD = '"""Echoes."""\nHERE = True\nasync def serve(request):\n    return request\n'


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Remove the modules that a test loaded."""
    modules, path, compiles = set(sys.modules), list(sys.path), sys.dont_write_bytecode
    yield
    sys.dont_write_bytecode = compiles
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


def write_modules(root: Path, **files: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def directory_source(root: Path, module: str) -> AppSource:
    return AppSource(DIRECTORY, module, str(root))


def test_a_module_is_loaded_from_its_directory(tmp_path):
    root = write_modules(tmp_path, echo_app=GOOD, helper_app="X = 1")

    module = load_module(directory_source(root, "echo_app"))

    assert module.HERE
    assert Path(module.__file__) == root / "echo_app.py"


def test_an_app_is_not_compiled_into_a_file_that_could_be_taken_for_its_next_text(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    root = write_modules(tmp_path, echo_app=GOOD)

    load_module(directory_source(root, "echo_app"))

    assert not (root / "__pycache__").exists()


def test_a_module_of_a_package_is_loaded_with_its_neighbours(tmp_path):
    root = write_modules(tmp_path, team_app__poems="from team_app.words import WORD\nasync def serve(request): ...\n")
    write_modules(tmp_path, team_app__words="WORD = 'rose'")
    (root / "team_app" / "__init__.py").touch()

    assert load_module(directory_source(root, "team_app.poems")).WORD == "rose"


@pytest.mark.parametrize("name", ["../echo_app", "a/b", ".echo", "echo.", "echo-app", "", "a b", "echo;x"])
def test_a_name_that_is_no_module_is_refused(tmp_path, name):
    with pytest.raises(BadRequest, match="is not the name of a Python module"):
        load_module(directory_source(tmp_path, name))


@pytest.mark.parametrize("name", ["json", "numpy", "omnibus.app.module_loader", "absent_app"])
def test_a_module_that_is_not_in_the_directory_is_not_taken_from_elsewhere(tmp_path, name):
    with pytest.raises(BadRequest, match=f"unknown module {name.partition('.')[0]} in"):
        load_module(directory_source(tmp_path, name))


def test_a_module_that_python_has_already_is_not_replaced(tmp_path):
    root = write_modules(tmp_path, json=GOOD)

    with pytest.raises(BadRequest, match="the module name json is in use by Python"):
        load_module(directory_source(root, "json"))


def test_a_link_out_of_the_directory_is_not_followed(tmp_path):
    outside = write_modules(tmp_path / "outside", evil_app="raise SystemExit('ran')")
    root = write_modules(tmp_path / "root", inner_app____init__="")
    (root / "evil_app.py").symlink_to(outside / "evil_app.py")
    (root / "inner_app" / "evil_app.py").symlink_to(outside / "evil_app.py")
    (root / "linked_app").symlink_to(outside)

    for name in ("evil_app", "inner_app.evil_app", "linked_app.evil_app"):
        with pytest.raises(BadRequest, match="unknown module"):
            load_module(directory_source(root, name))


def test_a_link_inside_of_the_directory_is_followed(tmp_path):
    root = write_modules(tmp_path, _data__mounted_app=GOOD)
    (root / "mounted_app.py").symlink_to(Path("_data") / "mounted_app.py")

    assert load_module(directory_source(root, "mounted_app")).HERE


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadRequest, match="unknown directory .*nowhere"):
        load_module(directory_source(tmp_path / "nowhere", "echo_app"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library' .bad_app.py, line 1."),
        ("x = 1\ny = x / 0", "ZeroDivisionError: division by zero .bad_app.py, line 2."),
        ("x = 1\ndef f(:", "SyntaxError: invalid syntax .bad_app.py, line 2."),
        ("raise SystemExit(3)", "SystemExit: 3 .bad_app.py, line 1."),
        (
            "from omnibus.errors import NotFound\nraise NotFound('no weights here')",
            "no weights here .bad_app.py, line 2.",
        ),
    ],
    ids=["import", "raise", "syntax", "exit", "typed"],
)
@pytest.mark.parametrize("kind", [DIRECTORY, UPLOAD])
def test_a_module_that_cannot_be_imported_says_why(tmp_path, caplog, kind, text, reason):
    source = (
        directory_source(write_modules(tmp_path, bad_app=text), "bad_app")
        if kind == DIRECTORY
        else AppSource(UPLOAD, "bad_app")
    )

    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(BadRequest, match=f"the module bad_app cannot be imported: {reason}"),
    ):
        load_module(source, text if kind == UPLOAD else "")

    assert "Traceback" in caplog.text


def test_an_installed_module_is_loaded_by_its_name():
    assert load_module(AppSource(IMPORT, "omnibus.app.protocol")).__name__ == "omnibus.app.protocol"


def test_an_app_of_a_plugin_is_loaded_by_the_name_of_its_entry_point(tmp_path, monkeypatch):
    root = write_modules(tmp_path, plugged_app=GOOD)
    about = root / "plugged-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[omnibus.apps]\nnice-echo = plugged_app\n")
    monkeypatch.syspath_prepend(str(root))

    assert load_module(AppSource(IMPORT, "nice-echo")).HERE


@pytest.mark.parametrize("name", ["no_such_module", "no-such-plugin", "no_such.module"])
def test_what_is_not_installed_is_named(name):
    with pytest.raises(BadRequest, match=f"'{name}'"):
        load_module(AppSource(IMPORT, name))


def test_an_installed_module_without_the_named_part_is_a_fault_of_the_request():
    with pytest.raises(BadRequest, match="No module named 'omnibus.no_such'"):
        load_module(AppSource(IMPORT, "omnibus.no_such"))


def test_an_uploaded_text_becomes_a_module_whose_lines_tracebacks_show(caplog):
    module = load_module(AppSource(UPLOAD, "sent_app"), GOOD + "def fail():\n    raise ValueError('here')\n")

    assert module.HERE
    with pytest.raises(ValueError, match="here"), caplog.at_level(logging.ERROR):
        try:
            module.fail()
        except ValueError:
            logging.getLogger(__name__).exception("failed")
            raise
    assert "raise ValueError('here')" in caplog.text


@pytest.mark.parametrize("name", ["json", "msgspec", "a.b", "os"])
def test_an_upload_does_not_take_the_name_of_another_module(name):
    with pytest.raises(BadRequest, match="cannot name an uploaded app"):
        load_module(AppSource(UPLOAD, name), GOOD)


def test_an_empty_upload_is_refused():
    with pytest.raises(BadRequest, match="text of sent_app is empty"):
        load_module(AppSource(UPLOAD, "sent_app"), " \n")


def test_a_source_of_another_kind_is_refused():
    with pytest.raises(BadRequest, match="unknown kind of source 'ftp'"):
        load_module(AppSource("ftp", "echo_app"))
