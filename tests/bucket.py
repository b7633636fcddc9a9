"""A real S3 server, moto's, with a bucket ``files``."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from omnibus.process.tuning import die_with_parent

#: The Python that has moto's server.
MOTO = Path(__file__).parents[1] / os.environ.get("S3_VENV", ".venv-s3") / "bin" / "python"
#: What clients of the server sign with.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
PATIENCE_SECONDS = 60.0


@contextmanager
def running_bucket() -> Iterator[str]:
    """Address of the server, until the block ends; skips the test without moto."""
    if not list(MOTO.parents[1].glob("lib/python*/site-packages/moto")):
        pytest.skip("moto's server is not installed: make install-s3")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(MOTO), "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent()
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _make_bucket(url)
        yield url
    finally:
        process.kill()
        process.wait(10)


def _make_bucket(url: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            httpx.put(f"{url}/files", headers={"authorization": "AWS test:test"}).raise_for_status()
            return
        except httpx.HTTPError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
