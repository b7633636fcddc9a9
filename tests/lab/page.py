"""The page docs/lab.md, from results."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

from tests.lab.experiment import Experiment, Value, times
from tests.lab.registry import EXPERIMENTS, PAPERS
from tests.lab.results import LabResult, plot_name

#: Ratio from which two systems count as equal: rates are found to a few percent.
_EQUAL = 0.995
_HEAD = """# The lab

Omnibus builds on four papers. A checkout repeats their main experiments and prints each paper's figure next to
ours, also if they differ. Packages do not contain them.

```sh
python -m tests.lab          # the experiments
python -m tests.lab routing  # run one of them: conditions, figures, tables
make lab                     # rerun experiments whose code changed, and write this page again
```

All experiments run in virtual time, without a GPU, on the planner's simulator ([what if](planner.md#what-if)). It has
the scheduling of real executors and the routing of gateways. Durations follow from figures of the paper, or else
from the size of model and GPU. Compare ratios between deployments with a paper's, and seconds only if they follow
from the paper's own figures. Results are the same on every machine.

**Plans** are made as in operation: the planner profiles the virtual engines, solves, simulates and corrects.
**Baselines** are [policies](planner.md#baselines) of the same planner.

## Results
"""


def write_page(results: Mapping[str, LabResult]) -> str:
    """Return the page of all experiments with results."""
    lines = [_HEAD, *_overview(results), *_margin_lines(results)]
    for paper, title in PAPERS.items():
        mine = [each for each in EXPERIMENTS.values() if each.paper == paper and each.name in results]
        shared = _shared_conditions([results[each.name] for each in mine])
        lines += ["", f"## {title}", ""] if mine else []
        lines += _shared_lines(shared) if shared else []
        for experiment in mine:
            lines += [*_experiment_lines(experiment, results[experiment.name], shared), ""]
    missing = [f"`{name}` ({each.figures})" for name, each in EXPERIMENTS.items() if name not in results]
    lines += ["", "## Not measured yet", "", f"`make lab` runs them: {', '.join(missing)}."] if missing else []
    return "\n".join(lines).rstrip() + "\n"


def _overview(results: Mapping[str, LabResult]) -> Iterator[str]:
    yield "| experiment | | paper | ours |"
    yield "|---|---|---|---|"
    for name, result in results.items():
        links = chain([f"[{name}](#{_anchor(EXPERIMENTS[name])})"], repeat(""))
        for link, claim in zip(links, result.findings.claims, strict=False):
            yield f"| {link} | {claim.what} | {claim.paper} | {claim.ours} |"


def _margin_lines(results: Mapping[str, LabResult]) -> Iterator[str]:
    """Yield the plans beside the best other system of each experiment, and those that lose."""
    found = [(name, each) for name, result in results.items() for each in result.findings.margins]
    if not found:
        return
    yield from ("", "## Plans beside the best other system", "")
    yield "Goals, routing and requests are the same for both. The other system is the best of its experiment."
    yield from ("", "| experiment | | best other | planned over it |", "|---|---|---|---|")
    for name, each in found:
        yield f"| [{name}](#{_anchor(EXPERIMENTS[name])}) | {each.where} | {each.best} | {times(each.ratio)} |"
    yield from ("", "### Where plans do not win", "")
    lost = [(name, each) for name, each in found if each.ratio < _EQUAL]
    yield from (f"- {name}, {each.where or 'all'}: {times(each.ratio)} of {each.best}" for name, each in lost)
    if not lost:
        yield "In these experiments no other system serves more."


def _shared_conditions(results: Sequence[LabResult]) -> tuple[str, ...]:
    """Return the conditions that several experiments share, in order of first use."""
    uses = Counter(condition for result in results for condition in result.findings.conditions)
    return tuple(condition for condition, count in uses.items() if count > 1)


def _shared_lines(shared: Sequence[str]) -> Iterator[str]:
    yield "Conditions of several experiments:"
    yield ""
    yield from (f"{number}. {condition}" for number, condition in enumerate(shared, 1))
    yield ""


def _experiment_lines(experiment: Experiment, result: LabResult, shared: Sequence[str]) -> Iterator[str]:
    found = result.findings
    numbers = [str(shared.index(condition) + 1) for condition in found.conditions if condition in shared]
    yield f"### {_heading(experiment)}"
    yield ""
    yield from [f"- Conditions {', '.join(numbers)} above"] if numbers else []
    yield from (f"- {condition}" for condition in found.conditions if condition not in shared)
    for number, plot in enumerate(found.plots, 1):
        yield ""
        yield f"![{plot.title}](assets/lab/{plot_name(experiment.name, number)})"
    if found.remarks:
        yield ""
        yield from found.remarks
    yield ""
    name = experiment.name
    yield f"[Tables](assets/lab/{name}.json); `python -m tests.lab {name}` takes {result.seconds:.0f} s of CPU time."


def format_value(value: Value) -> str:
    """Format a value with three digits, or return its text."""
    return value if isinstance(value, str) else f"{value:.3g}" if isinstance(value, float) else str(value)


def _heading(experiment: Experiment) -> str:
    return f"{experiment.title} ({experiment.figures})"


def _anchor(experiment: Experiment) -> str:
    """Return the anchor of the heading in Markdown."""
    kept = "".join(each for each in _heading(experiment).lower() if each.isalnum() or each in " -_")
    return kept.replace(" ", "-")
