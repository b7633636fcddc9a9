"""Serve checkpoints of every engine path on a GPU, and compare with transformers and diffusers.

    python -m tests.gpu                     on the GPU: 0.5 to 4 billion parameters each, in bfloat16
    python -m tests.gpu --tiny              on the CPU: tiny models in float32, whose answers must be equal

One system serves all models at once, and requests go to one after the other. Each figure stands beside that of the
library in the same run: ``ratio`` is above 1 where Omnibus is faster. Nothing is downloaded. The table is printed and
written to ``--out`` as JSON, with what differed.
"""

import argparse
import asyncio
import io
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from omnibus.families import catalog
from omnibus.process.logs import Log
from omnibus.up.stack import Stack
from tests.gpu import checkpoints, loads, paths
from tests.gpu.paths import Bench, Row
from tests.gpu.peers import Device

_SAMPLE = 0.05  # seconds between two looks at the GPU


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    device = Device("cpu", torch.float32) if options.tiny else Device("cuda", torch.bfloat16)
    names = options.only or list(checkpoints.RECIPES)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        rows, failures = asyncio.run(_measure(names, Path(directory), device, tiny=options.tiny))
    print(_format_table(rows))
    result = {"device": _describe(device), "rows": [row._asdict() for row in rows], "failures": failures}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    for name, failure in failures.items():
        print(f"{name}: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--only", nargs="+", choices=list(checkpoints.RECIPES), help="models to measure (default: all)")
    parser.add_argument("--directory", type=Path, help="where checkpoints are written (default: a temporary directory)")
    parser.add_argument("--out", type=Path, help="file for the result as JSON")
    return parser.parse_args(arguments)


async def _measure(
    names: Iterable[str], directory: Path, device: Device, *, tiny: bool
) -> tuple[list[Row], dict[str, str]]:
    found: dict[str, Path] = {}
    for name in names:
        with _reported(f"wrote {name}"):
            found[name] = checkpoints.build(name, directory, device.name, small=tiny)
    rows, failures, log, begin = [], {}, io.StringIO(), time.perf_counter()
    async with Stack(json.dumps({"models": _declare(found)}), env=_settings(device), log=Log(log)) as stack:
        rows.append(Row("all", "seconds until ready", time.perf_counter() - begin))
        for name, path in found.items():
            with _reported(f"measured {name}"):
                try:
                    async for row in _measure_path(name, path, stack.url, device, tiny=tiny):
                        print(_format_row(row), file=sys.stderr, flush=True)  # a run may be cut off
                        rows.append(row)
                except Exception as error:  # noqa: BLE001 the other models are measured nevertheless
                    failures[name] = f"{type(error).__name__}: {error}"[:2000]
    if failures:
        print(log.getvalue()[-6000:], file=sys.stderr)
    return rows, failures


@contextmanager
def _reported(step: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    print(f"{step}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)


def _declare(paths_by_name: Mapping[str, Path]) -> dict[str, Any]:
    return {
        name: catalog.untrained_declaration(checkpoints.RECIPES[name].family, str(path))
        for name, path in paths_by_name.items()
    }


def _settings(device: Device) -> dict[str, str]:
    own = {"OMNIBUS_EXECUTOR_NICE": "0"}
    if device.name == "cpu":
        return own
    return {
        **own,
        "OMNIBUS_EXECUTOR_DEVICE": device.name,
        "OMNIBUS_EXECUTOR_DTYPE": "bfloat16",
        "OMNIBUS_EXECUTOR_PIN_ARENA": "true",
        "OMNIBUS_SIDECAR_ARENA_MIB": "2048",
    }


async def _measure_path(name: str, path: Path, url: str, device: Device, *, tiny: bool) -> AsyncIterator[Row]:
    async with httpx.AsyncClient(base_url=url, timeout=loads.ANSWER_WITHIN) as http:
        with _watch_gpu(device) as samples:
            async for row in paths.PATHS[name](Bench(http, name, path, device, tiny)):
                yield row
    if samples:
        yield Row(name, "GPU busy, mean of the path in percent", statistics.mean(samples))


@contextmanager
def _watch_gpu(device: Device) -> Iterator[list[int]]:
    """Sample the GPU's utilization in percent while the block runs; nothing on a CPU."""
    samples: list[int] = []
    if device.name == "cpu":
        yield samples
        return
    import pynvml  # type: ignore[import-untyped]

    pynvml.nvmlInit()
    handle, over = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Event()

    def look() -> None:
        while not over.wait(_SAMPLE):
            samples.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _describe(device: Device) -> dict[str, str]:
    import diffusers
    import transformers

    name = torch.cuda.get_device_name() if device.name.startswith("cuda") else device.name
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "diffusers": diffusers.__version__,
    }
    return {"device": name, "dtype": str(device.dtype).removeprefix("torch."), **versions}


def _format_table(rows: Iterable[Row]) -> str:
    head = ["| model | measured | Omnibus | library | ratio |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_format_row, rows)])


def _format_row(row: Row) -> str:
    return f"| {row.model} | {row.what} | {row.ours:.4g} | {_show(row.peer)} | {_show(row.ratio)} |"


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
