"""The engine that other tests rely on really runs containers."""

import pytest

from tests.e2e import docker_engine as docker
from tests.e2e.docker_engine import BASE_IMAGE, DockerEngine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]


def test_a_container_runs_python_3_11_under_both_names(docker_engine: DockerEngine):
    for name in ("python", "python3"):
        output = docker_engine.run(
            "run", "--rm", BASE_IMAGE, name, "-c", "import sys; print(*sys.version_info[:2])", within=60
        )

        assert output.split() == ["3", "11"]


def test_a_container_can_make_a_virtual_environment_and_has_pip(docker_engine: DockerEngine):
    script = "python -m venv /tmp/v && /tmp/v/bin/pip --version && pip --version"

    output = docker_engine.run("run", "--rm", BASE_IMAGE, "sh", "-c", script, within=120)

    assert output.count("python 3.11") == 2


def test_compose_is_there(docker_engine: DockerEngine):
    assert "version" in docker_engine.run_compose("version", within=30)


def test_a_base_image_that_is_present_is_left_alone(docker_engine: DockerEngine):
    before = docker_engine.run("image", "inspect", "-f", "{{.Id}}", BASE_IMAGE, within=30)

    assert docker.ensure_image(docker_engine) == "present"
    assert docker_engine.run("image", "inspect", "-f", "{{.Id}}", BASE_IMAGE, within=30) == before
