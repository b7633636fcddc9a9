"""docs/routes.md names every route and quotes model prompts exactly."""

import re
from pathlib import Path

import pytest

from omnibus.encoding.audio import MAX_SPEED, MIME, MIN_SPEED
from omnibus_gateway.anthropic.openapi import message_paths
from omnibus_gateway.api import speech
from omnibus_gateway.ollama.openapi import ollama_paths
from omnibus_gateway.openai import transcriptions
from omnibus_gateway.openai.openapi import openapi_paths

TEXT = re.sub(r"\s+", " ", (Path(__file__).parents[4] / "docs" / "routes.md").read_text())


ROUTES = [
    f"{method.upper()} {path}"
    for path, item in (openapi_paths() | message_paths() | ollama_paths()).items()
    for method in item.keys() - {"parameters"}
    if "{" not in path
]


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_is_named(route: str):
    assert f"`{route}`" in TEXT


@pytest.mark.parametrize(
    "prompt", [speech.SYSTEM, speech.USER.partition("\n")[0], transcriptions.SYSTEM, transcriptions.USER]
)
def test_what_models_are_asked_for_is_quoted(prompt: str):
    assert f"`{prompt}`" in TEXT


def test_formats_and_speeds_are_those_there_are():
    assert all(f"`{format}`" in TEXT for format in MIME)
    assert f"`speed` from {MIN_SPEED} to {MAX_SPEED:g}" in TEXT
