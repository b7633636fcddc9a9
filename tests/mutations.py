"""Seeded one-line faults, which tests of their room must detect.

    python -m tests.mutations [--only WORDS] [--list]

Each fault is made in a copy of the tree. The tests that `make test` runs of the named files must then fail. First those
files run that import the changed module or are named after it, then the whole room if they pass. An undetected fault
shows a promise without a test: write that test. The run takes about five minutes.
"""

import argparse
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_SECONDS = 600.0
#: Time limit in seconds for a test that a fault blocks forever; no room takes as long otherwise.
_SECONDS_PER_TEST = 100


class Mutation(NamedTuple):
    """One fault: a replacement in ``path``.

    ``before``, which the file contains once, becomes ``after``. ``tests`` are those of the room.
    """

    path: str
    before: str
    after: str
    tests: str


_GATEWAY, _PLANNER, _OMNIBUS = "services/gateway/omnibus_gateway", "services/planner/omnibus_planner", "shared/omnibus"
MUTATIONS = [
    # The gateway
    Mutation(f"{_GATEWAY}/http/connection.py", "if room <= 0:", "if room < 0:", "tests/unit/gateway/http"),
    Mutation(
        f"{_GATEWAY}/media/fetcher.py",
        "        return allow_private",
        "        return True",
        "tests/unit/gateway/media",
    ),
    Mutation(
        f"{_GATEWAY}/media/inspect.py",
        "if extent.frames > limits.frames:",
        "if extent.frames > 2 * limits.frames:",
        "tests/unit/gateway/media",
    ),
    Mutation(
        f"{_GATEWAY}/dispatch/failures.py",
        "if deaths < MAX_DEATHS:",
        "if deaths <= MAX_DEATHS:",
        "tests/unit/gateway/dispatch",
    ),
    Mutation(
        f"{_GATEWAY}/routing/replicas.py",
        "limit = least + self._slack",
        "limit = 2 * least + self._slack",
        "tests/unit/gateway/routing",
    ),
    Mutation(
        f"{_GATEWAY}/routing/replicas.py",
        "loads[known_executor] <= least + MAX_EXCESS_ITEMS * item.work",
        "loads[known_executor] <= least",
        "tests/unit/gateway/routing",
    ),
    Mutation(
        f"{_GATEWAY}/tenancy/fair_queue.py",
        "line.mark = max(line.mark, self._lowest_mark)",
        "line.mark = self._lowest_mark",
        "tests/unit/gateway/tenancy",
    ),
    Mutation(
        f"{_GATEWAY}/tenancy/rate_limits.py",
        "self._at = max(now, self._at)",
        "self._at = now",
        "tests/unit/gateway/tenancy",
    ),
    Mutation(
        f"{_GATEWAY}/auth/tenancy.py",
        "return not path.startswith(_SELF_GUARDED_PREFIXES)",
        "return False",
        "tests/unit/gateway/auth",
    ),
    # The planner
    Mutation(
        f"{_PLANNER}/solve/mixture.py",
        "math.ceil(rate / each - _ROUNDING",
        "math.floor(rate / each - _ROUNDING",
        "tests/unit/planner/solve",
    ),
    Mutation(
        f"{_PLANNER}/reconcile/backend.py", "return more + fewer", "return fewer + more", "tests/unit/planner/reconcile"
    ),
    Mutation(f"{_PLANNER}/rollout/steps.py", "while lacks > 0:", "while lacks > 1:", "tests/unit/planner/rollout"),
    Mutation(
        f"{_PLANNER}/optimize/capacity.py",
        "return float(deployed.replicas)",
        "return 1.0",
        "tests/unit/planner/optimize",
    ),
    # Tensors and sidecars
    Mutation(
        f"{_OMNIBUS}/tensors/allocator.py",
        "        if start in self._by_end:\n            start = self._by_end[start]\n            self._drop_hole(start)\n",
        "",
        "tests/unit/tensors",
    ),
    Mutation(
        f"{_OMNIBUS}/tensors/ledger.py",
        "if lease.condemned or not (lease.readers or lease.retained):",
        "if lease.condemned or not lease.readers:",
        "tests/unit/tensors",
    ),
    Mutation(
        "services/sidecar/omnibus_sidecar/request_handler.py",
        "if when < self._armed:",
        "if when <= 0:",
        "tests/unit/sidecar",
    ),
    # The SDK
    Mutation(
        f"{_OMNIBUS}/api_key.py",
        'fullmatch(r"[0-9a-f]{64}"',
        'match(r"[0-9a-f]{64}"',
        "tests/unit/omnibus",
    ),
    Mutation(
        f"{_OMNIBUS}/executor/loop.py",
        "len(self._live) >= self.identity.credits",
        "len(self._live) > self.identity.credits",
        "tests/unit/executor",
    ),
    Mutation(
        f"{_OMNIBUS}/executor/loop.py",
        "self._taken.pop(invocation, None)",
        "pass",
        "tests/unit/executor",
    ),
    Mutation(
        f"{_OMNIBUS}/store/functions.lua",
        "if owner == '' and there[2] == attempt then return 0 end",
        "",
        "tests/contract",
    ),
    Mutation(
        f"{_OMNIBUS}/bus/nats/connection.py",
        'if " " in subjects or not subjects.isprintable():',
        'if " " in subjects:',
        "tests/unit/bus",
    ),
    # Engines
    Mutation(
        "services/llm/omnibus_llm/engine/sampler.py",
        "self.record_token(self.apply_script(token))",
        "self.apply_script(token)",
        "tests/unit/llm",
    ),
    Mutation(
        "services/llm/omnibus_llm/engine/slot_cache.py",
        "return (self._positions[None] <= self._ends[:, None])",
        "return (self._positions[None] < self._ends[:, None] + 2)",
        "tests/unit/llm",
    ),
    Mutation(
        "services/encoder/omnibus_encoder/embedding_cache.py",
        "            result.embeds.setflags(write=False)\n            self.store",
        "            self.store",
        "tests/unit/encoder",
    ),
    Mutation(
        "services/generator/omnibus_generator/vocoder.py",
        "yield from [size] * _CHUNKS_PER_SIZE",
        "yield from [size] * (_CHUNKS_PER_SIZE + 1)",
        "tests/unit/generator",
    ),
]


@functools.cache
def short_marks() -> str:
    """Return the marker expression of ``make test``. Raises ``ValueError`` if it has none."""
    commands = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if (match := re.search(r'-m pytest -m "([^"]+)"', commands)) is None:
        raise ValueError(f"make test gives no marks to pytest:\n{commands}")
    return match[1]


def copy_tree(target: Path) -> None:
    """Copy the tracked files, to keep faults out of the working tree."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, map(bytes.decode, names)):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def noticed_by(tree: Path, mutation: Mutation) -> str | None:
    """Return the test of the room that fails with ``mutation`` in ``tree``.

    The tree is restored afterwards.
    """
    file = tree / mutation.path
    text = file.read_text()
    if text.count(mutation.before) != 1:
        raise SystemExit(f"{mutation.path} has {text.count(mutation.before)} times {mutation.before!r}: mend the list")
    nearest = nearest_tests(tree, mutation)
    file.write_text(text.replace(mutation.before, mutation.after))
    try:
        return (_first_failure(tree, nearest) if nearest else None) or _first_failure(tree, [mutation.tests])
    finally:
        file.write_text(text)


def nearest_tests(tree: Path, mutation: Mutation) -> list[str]:
    """Return the room's test files for a changed module.

    They are named after it, or their imports contain it as text.
    """
    module = Path(mutation.path).relative_to("shared" if mutation.path.startswith("shared/") else "").with_suffix("")
    package, whole = ".".join(module.parts[:-1]), ".".join(module.parts)
    import_pattern = re.compile(
        rf"^(from {re.escape(package)} import .*\b{module.name}\b|(from|import) {re.escape(whole)}\b)", re.MULTILINE
    )
    files = sorted((tree / mutation.tests).rglob("test_*.py"))
    test_name = f"test_{module.name}.py"
    return [
        str(file.relative_to(tree))
        for file in files
        if file.name == test_name or import_pattern.search(file.read_text())
    ]


def _first_failure(tree: Path, tests: Sequence[str]) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", "-m", short_marks()]
    # A blocked test may also block on cancellation, so this ends the process.
    command += [f"--timeout={_SECONDS_PER_TEST}", "--timeout-method=thread", *tests]
    try:
        process = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:  # a fault that blocks forever counts as noticed
        return "the time limit"
    match = re.search(r"^(?:FAILED|ERROR) (\S+)", process.stdout, re.MULTILINE)
    return (match[1] if match else "a test that does not end") if process.returncode == 1 else None


def main() -> int:
    """Try each fault; 0 if all were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="faults in files whose paths contain this")
    parser.add_argument("--list", action="store_true", help="print the faults, and make none")
    options = parser.parse_args()
    mutations = [each for each in MUTATIONS if options.only in each.path]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="omnibus-mutations-") as directory:
        if not options.list:
            copy_tree(Path(directory))
        for mutation in mutations:
            fault = f"{mutation.path}: {mutation.before.strip()!r} -> {mutation.after.strip()!r}"
            if options.list:
                print(fault)
            elif test := noticed_by(Path(directory), mutation):
                print(f"noticed {fault}, by {test}", flush=True)
            else:
                print(f"MISSED  {fault}", flush=True)
                survivors.append(mutation)
    print(
        f"{len(mutations) - len(survivors)} of {len(mutations)} noticed"
        if not options.list
        else f"{len(mutations)} faults"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
