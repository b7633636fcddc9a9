"""Results of experiments as files: a JSON file for each, next to its plots."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path as File

import msgspec

from omnibus.process.spec import SHARED
from omnibus_planner.solve import highs
from tests.lab.digest import code_digest
from tests.lab.experiment import Experiment, Findings
from tests.lab.registry import EXPERIMENTS
from tests.lab.svg import draw_plot

#: Root of the checkout.
REPOSITORY = SHARED.parent
#: Directory of results and plots, relative to the repository.
DIRECTORY = "docs/assets/lab"


class LabResult(msgspec.Struct, frozen=True):
    """Findings of an experiment, its code digest, and seconds of CPU time."""

    digest: str
    seconds: float
    findings: Findings


def experiment_digest(experiment: Experiment) -> str:
    """Return the digest of the current code that ``experiment`` measures."""
    return code_digest(experiment.run.__module__)


def run_experiment(name: str) -> LabResult:
    """Run one experiment. Experiments of one module share the measurements of their models."""
    experiment, began = EXPERIMENTS[name], time.process_time()
    with highs.silence_stdout():
        findings = experiment.run()
    return LabResult(experiment_digest(experiment), round(time.process_time() - began, 1), findings)


def run_experiments(names: Iterable[str], jobs: int) -> Iterable[tuple[str, LabResult]]:
    """Run experiments in ``jobs`` processes, and yield results as modules end.

    Experiments of one module share a process.
    """
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(EXPERIMENTS[name].run.__module__, []).append(name)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(_run_all, each) for each in modules.values()]
        for done in as_completed(running):
            yield from done.result()


def _run_all(names: Sequence[str]) -> list[tuple[str, LabResult]]:
    return [(name, run_experiment(name)) for name in names]


def stale_experiments(directory: File) -> list[str]:
    """Return the experiments without a result of the current code."""
    known = read_results(directory)
    return [
        name
        for name, experiment in EXPERIMENTS.items()
        if name not in known or known[name].digest != experiment_digest(experiment)
    ]


def read_results(directory: File) -> dict[str, LabResult]:
    """Return results by experiment, in the order of the experiments."""
    files = {name: directory / f"{name}.json" for name in EXPERIMENTS}
    return {
        name: msgspec.json.decode(file.read_bytes(), type=LabResult) for name, file in files.items() if file.is_file()
    }


def write_results(directory: File, results: Mapping[str, LabResult]) -> None:
    """Write results and plots, and delete those of removed experiments."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        body = msgspec.json.format(msgspec.json.encode(result), indent=1)
        (directory / f"{name}.json").write_bytes(body + b"\n")
        for number, plot in enumerate(result.findings.plots, 1):
            (directory / plot_name(name, number)).write_text(draw_plot(plot))
    known = read_results(directory)
    wanted = {f"{name}.json" for name in known} | {
        plot_name(name, number + 1) for name, each in known.items() for number in range(len(each.findings.plots))
    }
    for file in directory.iterdir():
        if file.name not in wanted:
            file.unlink()


def plot_name(name: str, number: int) -> str:
    """Return the file name of plot ``number``, from 1, of an experiment."""
    return f"{name}-{number}.svg"


def results_directory() -> File:
    """Return the repository's directory of results."""
    return REPOSITORY / DIRECTORY
