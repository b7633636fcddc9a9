"""Compare measurements by ``guidellm`` and ``aiperf`` with those of our client.

    python -m tests.bench.judges --guidellm VENV/bin/guidellm --aiperf VENV/bin/aiperf

Install each in its own environment (docs/performance.md); the benchmark skips a tool whose command is not given. One
system serves a simulated model with fixed times: the first token after 0.3 s, then one every 30 ms. A busy machine
therefore changes them little. Our client and the others send the same load one after another: streamed chats, with a
fixed number at once. The output contains means, and the others' figures over ours.
"""

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

from omnibus.families import catalog
from omnibus.process.logs import Log
from omnibus.up.stack import Stack
from omnibus_models import tiny
from tests.bench.beside_vllm import send_chat

AT_ONCE, REQUESTS, TOKENS, PROMPT = 8, 48, 48, 32
MODEL = "simulated"
_TIMES = {"slots": AT_ONCE, "batch": {"base": 0.3}, "step": {"base": 0.03}, "steps": TOKENS}
PROFILE = {"default": {"components": {"thinker": _TIMES}}}
_JUDGE_SECONDS = 400.0


class Figures(NamedTuple):
    """Means: requests per second, milliseconds to the first token, between tokens, and to the end."""

    rate: float
    first: float
    between: float
    whole: float


def _make_body(number: int) -> bytes:
    words = " ".join(f"word{(number * 7 + place) % 97}" for place in range(PROMPT))
    request = {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": TOKENS, "stream": True}
    return json.dumps({**request, "ignore_eos": True}).encode()


async def run_own_client(port: int) -> Figures:
    """Results of the load with our own client."""
    numbers, answers = iter(range(REQUESTS)), []

    async def send_all(numbers: Iterator[int]) -> None:
        for number in numbers:
            answers.append(await send_chat(port, _make_body(number)))

    start_time = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(send_all(numbers))
    seconds = time.perf_counter() - start_time
    first, whole = (statistics.mean(getattr(each, name) for each in answers) for name in ("first", "whole"))
    return Figures(len(answers) / seconds, 1000 * first, 1000 * (whole - first) / (TOKENS - 1), 1000 * whole)


def run_guidellm(command: str, url: str, tokenizer: str, directory: Path) -> Figures:
    """Results of the load with GuideLLM."""
    report = directory / "guidellm.json"
    _run_tool(
        *(command, "run", "--backend", f"kind=openai_http,target={url},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={AT_ONCE}", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}"),
        *("--output", f"kind=json,path={report}", "--disable-console-interactive"),
    )
    metrics = json.loads(report.read_text())["benchmarks"][0]["metrics"]

    def read_mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    return Figures(
        read_mean("requests_per_second"),
        read_mean("time_to_first_token_ms"),
        read_mean("inter_token_latency_ms"),
        1000 * read_mean("request_latency"),
    )


def run_aiperf(command: str, url: str, tokenizer: str, directory: Path) -> Figures:
    """Results of the load with AIPerf."""
    _run_tool(
        *(command, "profile", "--model", MODEL, "--url", url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", tokenizer, "--concurrency", str(AT_ONCE), "--request-count", str(REQUESTS)),
        *("--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--artifact-dir", str(directory), "--ui", "none"),
        # By the tiny tokenizer the words of the simulated answer are twice as many.
        "--use-server-token-count",
    )
    report = json.loads(next(directory.rglob("profile_export_aiperf.json")).read_text())

    def read_mean(name: str) -> float:
        return float(report[name]["avg"])

    names = ("request_throughput", "time_to_first_token", "inter_token_latency", "request_latency")
    return Figures(*map(read_mean, names))


def _run_tool(*command: str) -> None:
    # Its own libraries; and offline AIPerf takes a directory for an id of the hub.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE")}
    subprocess.run(command, env=environment, stdout=sys.stderr, timeout=_JUDGE_SECONDS, check=True)


async def measure_tools(commands: dict[str, str]) -> dict[str, Figures]:
    """Figures by tool; ours are measured before and after the others."""
    with tempfile.TemporaryDirectory() as directory_name:
        directory = Path(directory_name)
        (directory / "profile.json").write_text(json.dumps(PROFILE))
        tokenizer = str(tiny.build("qwen3", directory / "tokenizer"))
        declarations = {"models": {MODEL: catalog.model_declaration("qwen3", str(directory / "profile.json"))}}
        env = {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim"}
        async with Stack(json.dumps(declarations), env=env, log=Log(io.StringIO())) as stack:
            await run_own_client(stack.port)  # what is loaded with the first requests
            figures = {"ours": await run_own_client(stack.port)}
            for name, judge in (("guidellm", run_guidellm), ("aiperf", run_aiperf)):
                if commands.get(name):
                    figures[name] = await asyncio.to_thread(judge, commands[name], stack.url, tokenizer, directory)
            figures["ours again"] = await run_own_client(stack.port)
    return figures


def format_table(results: dict[str, Figures]) -> str:
    """Lines of a table: each figure, with its ratio to ours in brackets."""
    base = results["ours"]
    lines = [f"{'':<12}{'req/s':>16}{'first token ms':>20}{'between ms':>18}{'whole ms':>20}"]
    for name, figures in results.items():
        cells = [f"{value:.2f} ({value / own:.3f})" for value, own in zip(figures, base, strict=True)]
        lines.append(f"{name:<12}{cells[0]:>16}{cells[1]:>20}{cells[2]:>18}{cells[3]:>20}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("guidellm", "aiperf"):
        parser.add_argument(f"--{name}", default="", help=f"the command {name} of its environment")
    print(format_table(uvloop.run(measure_tools(vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
