"""The browser for tests."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

#: Names of Chromium without and with a window, in the order in which they are taken.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str:
    """Path of the browser: from ``OMNIBUS_TEST_BROWSER``, the machine, or playwright."""
    given = os.environ.get("OMNIBUS_TEST_BROWSER", "")
    for name in [given] if given else NAMES:
        if found := shutil.which(name):
            return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    if given or not Path(own).exists():
        pytest.fail(f"no browser {given or ', '.join(NAMES)}: `make install-browser` installs one", pytrace=False)
    return own
