"""The browser for tests."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

#: Names of Chromium without and with a window, in the order in which they are taken.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_executable() -> str:
    """Path of the browser: from ``OMNIBUS_TEST_BROWSER``, the machine, or playwright."""
    setting = os.environ.get("OMNIBUS_TEST_BROWSER", "")
    for name in [setting] if setting else NAMES:
        if path := shutil.which(name):
            return path
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    if setting or not Path(own).exists():
        pytest.fail(f"no browser {setting or ', '.join(NAMES)}: `make install-browser` installs one", pytrace=False)
    return own
