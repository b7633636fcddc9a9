"""docs/lab.md from results."""

from collections.abc import Iterator, Mapping

from services.planner.lab.experiment import Experiment, PaperClaim, Table, Value
from services.planner.lab.registry import EXPERIMENTS, PAPERS
from services.planner.lab.results import LabResult, plot_name

_HEAD = """# The lab

Omnibus rests on four papers. `omnibus lab` repeats their headline experiments and prints the paper's figure beside
ours, also where ours is another one. This page is what `make lab` has written.

```sh
omnibus lab                  # the experiments
omnibus lab routing          # one of them: conditions, figures, tables
make lab                     # run what the code has changed for, and write this page again
```

**How it is measured.** No GPU and no clock: all experiments run in virtual time, on the simulator that the planner asks
before it promises a plan ([whatif.md](whatif.md)). Its executors are devices of the `sim` engine, with the schedule
that computing executors have; its router follows the rules of gateways. Engines take times that follow from what a
paper prints, or, where a paper prints none, from the size of the model and the GPU; each experiment says which. So
ratios between deployments can be compared with a paper's, seconds only where they follow from its own figures. The same
question has the same answer on every machine. Each result has the digest of the code that it was measured with
(`services/planner/lab/digest.py`); a test refuses a page that is older than its code.

**Plans** are the planner's: it measures a profile of the virtual engines, solves, simulates and corrects, as it does in
operation. **Baselines** are policies of the same planner (`planned.policy`, [planner.md](planner.md#baselines)).
"""


def write_page(results: Mapping[str, LabResult]) -> str:
    """The page of all experiments that have results."""
    lines = [_HEAD, *_overview(results)]
    for paper, title in PAPERS.items():
        mine = [each for each in EXPERIMENTS.values() if each.paper == paper and each.name in results]
        lines += ["", f"## {title}", ""] if mine else []
        for experiment in mine:
            lines += [*_experiment_lines(experiment, results[experiment.name]), ""]
    missing = [f"`{name}` ({each.figures})" for name, each in EXPERIMENTS.items() if name not in results]
    lines += ["", "## Not measured yet", "", f"`make lab` runs them: {', '.join(missing)}."] if missing else []
    return "\n".join(lines).rstrip() + "\n"


def _overview(results: Mapping[str, LabResult]) -> Iterator[str]:
    yield "| experiment | figure | | paper | ours |"
    yield "|---|---|---|---|---|"
    for name, result in results.items():
        experiment = EXPERIMENTS[name]
        for claim in result.findings.claims:
            yield f"| [{name}](#{_anchor(experiment)}) | {experiment.figures} | {_claim_cells(claim)} |"


def _experiment_lines(experiment: Experiment, result: LabResult) -> Iterator[str]:
    found = result.findings
    yield f"### {_heading(experiment)}"
    yield ""
    yield from (f"- {condition}" for condition in found.conditions)
    yield ""
    yield "| | paper | ours |"
    yield "|---|---|---|"
    yield from (f"| {_claim_cells(claim)} |" for claim in found.claims)
    for number, plot in enumerate(found.plots, 1):
        yield ""
        yield f"![{plot.title}](assets/lab/{plot_name(experiment.name, number)})"
    for table in found.tables:
        yield ""
        yield from table_lines(table)
    if found.remarks:
        yield ""
        yield from (f"{remark}" for remark in found.remarks)
    yield ""
    yield f"`omnibus lab {experiment.name}`, {result.seconds:.0f} s of CPU time."


def table_lines(table: Table) -> Iterator[str]:
    """A table in Markdown."""
    yield f"**{table.title}**"
    yield ""
    yield f"| {' | '.join(table.columns)} |"
    yield f"|{'---|' * len(table.columns)}"
    yield from (f"| {' | '.join(format_value(value) for value in row)} |" for row in table.rows)


def format_value(value: Value) -> str:
    """A value with three digits, or the text."""
    return value if isinstance(value, str) else f"{value:.3g}" if isinstance(value, float) else str(value)


def _claim_cells(claim: PaperClaim) -> str:
    return f"{claim.what} | {claim.paper} | {claim.ours}"


def _heading(experiment: Experiment) -> str:
    return f"{experiment.title} ({experiment.figures})"


def _anchor(experiment: Experiment) -> str:
    """The anchor that Markdown gives the heading."""
    kept = "".join(each for each in _heading(experiment).lower() if each.isalnum() or each in " -_")
    return kept.replace(" ", "-")
