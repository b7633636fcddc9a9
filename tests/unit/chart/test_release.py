"""The parts of a release: the chart's archive, notes, and a build of all services."""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from omnibus import __version__
from tests.e2e.system import ROOT
from tests.kube import chart
from tests.kube.helm import CHART
from tests.unit.test_compose_layers import OURS
from tools.release_notes import CHANGELOG, release_notes


def test_the_archive_holds_the_chart(helm_home: Path, tmp_path: Path):
    path = Path(chart.package_chart(tmp_path))

    assert path.name == f"omnibus-{__version__}.tgz"
    with tarfile.open(path) as archive:
        names = set(archive.getnames())
    assert {"omnibus/Chart.yaml", "omnibus/values.yaml", "omnibus/values.schema.json"} <= names


def test_the_chart_is_rendered_with_the_values_of_files(
    helm_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine.yaml").write_text("planner: {replicas: 7}")

    assert chart.main(["template", str(CHART / "values-cpu.yaml"), str(tmp_path / "mine.yaml")]) == 0

    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [
        each["spec"]["replicas"]
        for each in objects
        if each["metadata"]["name"] == "omnibus-planner" and each["kind"] == "Deployment"
    ] == [7]


def test_what_a_version_of_kubernetes_does_not_take_is_found(helm_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chart, "_OVERLAYS", ["none.yaml"])
    monkeypatch.setattr(
        chart,
        "render",
        lambda files, release="": [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [], "wrong": 1}}
        ],
    )

    assert any("wrong" in line for line in chart.lint_chart())


def test_notes_are_the_section_of_the_version():
    text = "# Changes\n\n## Unreleased\n\n- new\n\n## 1.2.0 (2026-11-24)\n\n- old\n- older\n"

    assert release_notes(text, "1.2.0") == "- old\n- older\n"
    assert release_notes(text, "1.3.0") == "- new\n"
    assert len(release_notes(CHANGELOG.read_text(), __version__)) > 1000
    with pytest.raises(ValueError, match="says nothing of 2"):
        release_notes("# Changes\n", "2.0.0")


def test_a_release_builds_every_service_and_only_its_own_version(tmp_path: Path):
    script = (ROOT / ".ci" / "release").read_text()
    (services,) = re.findall(r'^services="(.*)"$', script, re.MULTILINE)
    process = subprocess.run([ROOT / ".ci" / "release", "99.0.0"], capture_output=True, text=True, check=False)

    images = {
        yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"][name]["image"] for name in OURS
    }
    assert {f"omnibus-{service}" for service in services.split()} == images
    assert process.returncode == 1
    assert f"the code is of version {__version__}, not 99.0.0" in process.stderr
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert any(".ci/release" in step.get("run", "") for step in workflow["jobs"]["release"]["steps"])
