"""Distributions as an installer leaves them: modules, and a ``dist-info`` with entry points."""

import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from omnibus.families import plugins

Install = Callable[..., Path]

#: A chat model of two components; its module imports nothing heavy.
TOY = """
    from omnibus.task import ChatInput, ChatOutput, CompositeTask, Think

    FAMILY = {
        "components": ["eye", "writer"],
        "encoders": {"image": "eye"},
        "tasks": {"eye": "encode", "writer": "think"},
        "options": {
            "E": {"components": ["eye"], "service": "encoder"},
            "W": {"components": ["writer"], "service": "llm"},
            "EW": {"components": ["eye", "writer"], "service": "llm"},
        },
        "paths": [{"options": ["E", "W"], "share": 3}, {"options": ["EW"]}],
        "composite": "MODULE:chat",
        "engine": "MODULE:engine",
    }


    class Toy(CompositeTask):
        writer: Think

        def invoke(self, request: ChatInput) -> ChatOutput:
            raise AssertionError("only its fields are looked at")


    def chat(name, plan):
        return Toy(writer=Think(model=name, component=plan.components[-1]))


    class Runner:
        def __init__(self, component, settings):
            self.component = component
            self.checkpoint = settings.checkpoint

        async def load(self):
            pass

        async def run(self, job):
            await job.put("said", {"by": self.component, "of": self.checkpoint})

        async def close(self):
            pass

        def stats(self):
            return {"component": self.component}


    def engine(component, settings):
        return Runner(component, settings)
"""


@contextmanager
def open_installer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, groups, **modules)`` makes the distribution ``name`` importable until the block ends."""

    def install_distribution(name: str, groups: Mapping[str, Mapping[str, str]], **modules: str) -> Path:
        place = directory / name
        info = place / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        points = [
            f"[{group}]\n" + "\n".join(f"{key} = {value}" for key, value in entries.items())
            for group, entries in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n\n".join(points) + "\n")
        for module, text in modules.items():
            (place / f"{module}.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(str(place))
        return place

    monkeypatch.setattr(plugins, "_families", {})
    yield install_distribution


def install_toy(install: Install, module: str, family: str = "toy") -> None:
    """Install the chat model as ``family``.

    Modules stay imported, so each test needs a different ``module``.
    """
    install(
        f"dist-{module}", {plugins.FAMILIES: {family: f"{module}:FAMILY"}}, **{module: TOY.replace("MODULE", module)}
    )
