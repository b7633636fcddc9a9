"""The wheel and the source distribution work without the checkout."""

import json
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import ROOT
from tests.e2e.test_app_run import SHOUT, dedent

pytestmark = pytest.mark.e2e

_PACKAGES = tuple(
    str(path.relative_to(ROOT)) for part in ("shared", "services/*") for path in ROOT.glob(f"{part}/omnibus*")
)
_METADATA = ("pyproject.toml", "README.md", "LICENSE")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
_BUILD_SOURCE = "from setuptools import build_meta; import sys; build_meta.build_sdist(sys.argv[1])"
#: Commands of the README: how to build the wheel, how to install it, and what to run then.
_BUILD, _INSTALL, _RUN = re.findall(r"^(?:pip|omnibus) .*$", (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel and a source distribution of this checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=_LEFT_OUT)
    for name in _METADATA:
        shutil.copy(ROOT / name, copy)
    offline = [sys.executable, "-m", *shlex.split(_BUILD), "--no-index", "--no-build-isolation"]
    for build in (offline, [sys.executable, "-c", _BUILD_SOURCE, "dist"]):
        subprocess.run(build, cwd=copy, check=True, capture_output=True, timeout=120)
    return copy / "dist"


@pytest.fixture(scope="module")
def installed_command(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Command ``omnibus`` of an environment with the wheel and borrowed libraries."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=60)
    packages = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    pip, *install = shlex.split(
        _INSTALL.replace("dist/omnibus_serve-*.whl", str(next(distributions.glob("omnibus_serve-*.whl"))))
    )
    offline = [
        sys.executable,
        "-m",
        pip,
        "--python",
        str(place / "bin" / "python"),
        *install,
        "--no-deps",
        "--no-index",
    ]
    subprocess.run(offline, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return place / "bin" / "omnibus"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with only an app, outside of the checkout."""
    (tmp_path / "shout.py").write_text(dedent(SHOUT))
    return tmp_path


def make_environment(here: Path) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "XDG_RUNTIME_DIR": str(here)}


def test_both_have_every_file_of_the_packages(distributions: Path):
    files = {
        str(path.relative_to(ROOT))
        for package in _PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with (
        zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel,
        tarfile.open(next(distributions.glob("*.tar.gz"))) as source,
    ):
        in_wheel, in_source = set(wheel.namelist()), {name.partition("/")[2] for name in source.getnames()}

    assert {"shared/omnibus/py.typed", "services/gateway/omnibus_gateway/console/static/index.html"} <= files
    assert {name for name in files if re.sub("^(shared|services/[a-z]+)/", "", name) not in in_wheel} == set()
    assert files - in_source == set()


def test_every_package_has_a_name_of_its_own(distributions: Path):
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        packages = {name.partition("/")[0] for name in wheel.namelist()}

    assert {name for name in packages if not name.startswith("omnibus")} == set()


def test_the_installed_command_uses_the_wheel_alone(installed_command: Path, here: Path):
    code = (
        "import omnibus as a, omnibus_models as b, omnibus_gateway as c; print(*a.__path__, *b.__path__, *c.__path__)"
    )
    command = [str(installed_command.parent / "python"), "-c", code]
    process = subprocess.run(command, cwd=here, env=make_environment(here), capture_output=True, text=True, check=False)

    assert len(process.stdout.split()) == 3, process.stderr
    assert all(path.startswith(str(installed_command.parents[1])) for path in process.stdout.split())


def test_the_demo_runs_from_the_wheel(installed_command: Path, here: Path):
    process = subprocess.run(
        [str(installed_command), *shlex.split(_RUN)[1:], "--seed", "1"],
        cwd=here, env=make_environment(here), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert process.returncode == 0, process.stdout + process.stderr
    assert "a black circle on red at the right" in process.stdout
    assert (here / "answer.wav").stat().st_size > 44


def test_an_app_runs_from_the_wheel(installed_command: Path, here: Path):
    process = subprocess.run(
        [str(installed_command), "app", "run", "shout.py", '"hello"'],
        cwd=here, env=make_environment(here), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip

    assert (process.returncode, process.stdout) == (0, "HELLO!\n"), process.stderr


def test_an_app_may_have_packages_with_the_names_of_our_directories(installed_command: Path, here: Path):
    """It imports its own ``services``, ``shared`` and ``tests``."""
    for package in ("services", "shared", "tests"):
        (here / package).mkdir()
        (here / package / "__init__.py").write_text(f"NAME = 'my {package}'\n")
    joined = "', '.join([words.text, services.NAME, shared.NAME, tests.NAME])"
    app = "import services, shared, tests\n" + dedent(SHOUT).replace("words.text", joined, 1)
    (here / "shout.py").write_text(app)

    process = subprocess.run(
        [str(installed_command), "app", "run", "shout.py", '"hello"'],
        cwd=here, env=make_environment(here), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip

    assert (process.returncode, process.stdout) == (0, "HELLO, MY SERVICES, MY SHARED, MY TESTS!\n"), process.stderr


@pytest.fixture
def gateway_url(installed_command: Path, here: Path) -> Iterator[str]:
    """URL of the gateway of ``omnibus up`` with one tiny model."""
    process = subprocess.Popen(
        [str(installed_command), "up", "--port", "0", "--only", "qwen2.5-vl-tiny"],
        cwd=here, env=make_environment(here), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if match := re.search(r"http://127\.0\.0\.1:\d+", line) if line.startswith("Omnibus is up") else None:
                yield match[0]
                break
        else:
            pytest.fail("".join(lines))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_model_answers_from_the_wheel(gateway_url: str):
    body = {"model": "qwen2.5-vl-tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    request = urllib.request.Request(f"{gateway_url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        completion = json.load(answer)
    with urllib.request.urlopen(f"{gateway_url}/console/", timeout=60) as page:
        console = page.read()

    assert 1 <= completion["usage"]["completion_tokens"] <= 4
    assert b"<html" in console
