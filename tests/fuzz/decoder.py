"""A process that decodes its input, to isolate crashes.

Its memory is limited.

    python -m tests.fuzz.decoder

It reads a header line (a modality, a blank and a length), then so many bytes, from standard input. It writes a line of
JSON for each to standard output.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from omnibus import errors
from omnibus.process.spec import PACKAGE_PATH

ROOT = Path(__file__).parents[2]
_ADDRESS_BYTES = 6 << 30  # beyond this a decoder gets MemoryError
_WITHIN_SECONDS = 120.0


class DecodeOutcome(NamedTuple):
    """Outcome of decoding one file.

    ``word`` is ``ok``, the code of a typed error, ``untyped: ...`` or ``died: ...``. The other fields are its cost.
    """

    word: str
    seconds: float = 0.0  # of the processor
    peak_bytes: int = 0  # above what the process had before


class Decoder:
    """The decoder process, restarted after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def decode(self, modality: str, data: bytes) -> DecodeOutcome:
        process = self._process or self._start_process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{modality} {len(data)}\n".encode() + data)
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if answer:
            return DecodeOutcome(*json.loads(answer))
        self._process = None
        return DecodeOutcome(f"died: exit status {process.wait()}")

    def _start_process(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.fuzz.decoder"]
        paths = {"PYTHONPATH": f"{ROOT}:{PACKAGE_PATH}", "PATH": ""}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    from omnibus_models import media

    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    decoders = {"audio": media.decode_audio, "image": media.decode_image, "video": media.decode_video}
    while line := sys.stdin.buffer.readline():
        modality, length = line.split()
        data = sys.stdin.buffer.read(int(length))
        answer = _decode_file(decoders[modality.decode()], data)
        print(json.dumps(answer), flush=True)


def _decode_file(decode: Any, data: bytes) -> DecodeOutcome:
    before, began = _forget_peak(), time.process_time()
    try:
        decode(memoryview(data))
        word = "ok"
    except errors.Rejected as error:
        word = error.code
    except BaseException as error:  # noqa: BLE001 - any other exception is a finding
        word = f"untyped: {type(error).__name__}: {error}"
    return DecodeOutcome(word, time.process_time() - began, max(0, _read_status("VmHWM") - before))


def _forget_peak() -> int:
    """Have the kernel count the peak from here; resident bytes."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _read_status("VmRSS")


def _read_status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


if __name__ == "__main__":
    main()
