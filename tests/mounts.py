"""Small file systems of a test's own."""

import subprocess

import pytest


def find_unshare() -> list[str]:
    """Prefix that runs a command in a new mount namespace.

    Skips the test if that is not allowed.
    """
    for flags in ("-m", "-Urm"):
        try:
            if subprocess.run(["unshare", flags, "true"], capture_output=True, check=False).returncode == 0:
                return ["unshare", flags, "--"]
        except FileNotFoundError:
            break
    pytest.skip("this user may not mount a file system, even one of its own")
