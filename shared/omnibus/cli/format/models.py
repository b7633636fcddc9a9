"""Families and checkpoints as data and as text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnibus.checkpoints import is_id
from omnibus.checkpoints.gguf_header import GGUF_BLOCKS, LLAMA_CPP, MULTIMODAL, is_gguf, read_gguf_header
from omnibus.checkpoints.packaged import INSTALL_ALL, OTHER_LICENCES, PACKAGED
from omnibus.checkpoints.report import ComponentReport, Report, TrialReport
from omnibus.cli.format.tables import field_lines, size_text, table_lines
from omnibus.families import catalog
from omnibus.families.specs import KNOWN
from omnibus.plan import ModelPlan, Plan

#: The dtype that executors load by default.
DEFAULT_DTYPE = "float32"


def family_info(name: str) -> dict[str, Any]:
    """Return the description of a family, without a checkpoint. Raises ``BadRequest`` if a plugin fails to load."""
    family = catalog.find_family(name)
    usual = {option for path in family["paths"] for option in path["options"]}
    options = {each: {**option, "usual": each in usual} for each, option in family["options"].items()}
    return {
        "family": name,
        "title": _family_title(name),
        "takes": catalog.input_kinds(family),
        "gives": catalog.output_kinds(family),
        "components": {part: family["tasks"][part] for part in family["components"]},
        "voices": list(family["voices"]),
        "options": dict(sorted(options.items(), key=lambda item: not item[1]["usual"])),
        "paths": list(family["paths"]),
        "tiny": KNOWN[name].tiny if name in KNOWN else "",
    }


def plan_model_summary(model: ModelPlan) -> dict[str, Any]:
    """Return a short summary of a model of a plan."""
    replicas = {name: option.replicas for name, option in model.options.items() if not option.of}
    return {"family": model.family, "checkpoint": model.checkpoint, "options": replicas}


def list_lines(
    families: Mapping[str, Mapping[str, Any]], absent: Mapping[str, str], plan: Plan | None
) -> Iterator[str]:
    """Yield the lines of ``omnibus models list``. ``absent`` maps the families that are not served to the reasons."""
    rows = [
        [name, each["title"], ", ".join(each["takes"]), ", ".join(each["gives"]), ", ".join(each["components"])]
        for name, each in families.items()
    ]
    tiny = [each["tiny"] for each in families.values()]
    yield from table_lines(
        ["FAMILY", "MODELS", "TAKES", "GIVES", "COMPONENTS", "TINY"],
        [[*row, name] for row, name in zip(rows, tiny, strict=True)],
        spare=["COMPONENTS"],  # of one family: `omnibus models show FAMILY`
    )
    yield ""
    yield from table_lines(["NOT SERVED", "WHY"], [[name, why] for name, why in absent.items()])
    if plan is not None and plan.models:
        summaries = {name: plan_model_summary(model) for name, model in plan.models.items()}
        yield ""
        yield from table_lines(
            ["RUNNING", "FAMILY", "CHECKPOINT", "OPTIONS"],
            [
                [name, each["family"], _checkpoint_text(each), _replica_text(each["options"])]
                for name, each in summaries.items()
            ],
        )


def packaged_lines() -> Iterator[str]:
    """Yield the lines of ``omnibus models get``: packaged weights, their sizes and licences."""
    rows = []
    for name, each in PACKAGED.items():
        installed = "yes" if each.is_installed else "no"
        download, package = f"{each.megabytes} MB", f"{each.package} {each.release}"
        rows.append([name, each.weights, download, each.licence, package, installed])
    head = ["NAME", "WEIGHTS", "DOWNLOAD", "LICENCE", "PACKAGE", "INSTALLED"]
    yield from table_lines(head, rows, spare=["PACKAGE"])
    yield from OTHER_LICENCES
    size = sum(each.megabytes for each in PACKAGED.values() if not each.is_installed)
    if size:
        yield f"\n{INSTALL_ALL} installs all of them ({size} MB) and their engines"


def packaged_use(name: str, path: Path) -> str:
    """Return how to use the packaged weights ``name`` at ``path``."""
    if not PACKAGED[name].is_checkpoint:
        return "apps have its engine: omnibus up --real"
    return f"omnibus serve {path} --served-model-name {name}"


def family_lines(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of ``omnibus models show FAMILY``."""
    yield from field_lines(
        {
            "family": f"{about['family']} ({about['title']})",
            "takes": ", ".join(about["takes"]),
            "gives": ", ".join(about["gives"]),
            "voices": ", ".join(about["voices"]),
            "tiny": about["tiny"],
        }
    )
    yield ""
    yield from table_lines(["COMPONENT", "UNIT TASK"], [[part, kind] for part, kind in about["components"].items()])
    yield ""
    rows = [
        [name, "+".join(each["components"]), each["service"], "yes" if each["usual"] else ""]
        for name, each in about["options"].items()
    ]
    yield from table_lines(["OPTION", "RUNS", "SERVICE", "USUAL"], rows)
    yield ""
    yield from _path_lines(about["paths"])


def checkpoint_lines(report: Report) -> Iterator[str]:
    """Yield the lines of ``omnibus models show PATH``."""
    info = family_info(report.family)
    yield from field_lines(
        {
            "checkpoint": report.path,
            "family": f"{report.family} ({info['title']})",
            "takes": ", ".join(info["takes"]),
            "gives": ", ".join(info["gives"]),
            "weights": _stored_text(report),
            "dtype": _dtype_text(report),
            "sampling": ", ".join(f"{name} {value:g}" for name, value in report.sampling.items()),
        }
    )
    yield ""
    rows = [
        [name, info["components"].get(name, ""), count_text(part.parameters), _memory_text(part), *_cache_cells(part)]
        for name, part in report.parts.items()
    ]
    yield from table_lines(["COMPONENT", "UNIT TASK", "PARAMETERS", "MEMORY", "CACHE PER TOKEN", "CONTEXT"], rows)
    yield ""
    option_sizes = {name: size_text(nbytes) for name, nbytes in option_bytes(report).items()}
    rows = [
        [
            name,
            "+".join(each["components"]),
            each["service"],
            option_sizes.get(name, "?"),
            "yes" if each["usual"] else "",
        ]
        for name, each in info["options"].items()
    ]
    yield from table_lines(["OPTION", "RUNS", "SERVICE", "MEMORY", "USUAL"], rows)
    yield ""
    yield from _path_lines(info["paths"])
    yield ""
    yield "Memory is that of weights. Caches and activations need more."
    yield from report.notes
    yield from (f"{name}: {fault}" for name, part in report.parts.items() for fault in _unexpected_faults(report, part))


def check_lines(
    report: Report, declaration: Mapping[str, Any], identities: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield the lines of ``omnibus models check``. ``identities`` maps encoders to their digests."""
    yield f"{report.path}: {report.family} ({_family_title(report.family)}); weights: {_stored_text(report)}"
    yield ""
    verdicts = {name: "; ".join(part.faults) or "complete" for name, part in report.parts.items()}
    if not report.stored:
        verdicts = {name: part.problem or "no weights" for name, part in report.parts.items()}
    rows = [[name, _memory_text(part), verdicts[name]] for name, part in report.parts.items()]
    yield from table_lines(["COMPONENT", "MEMORY", "CHECKPOINT"], rows)
    yield ""
    yield from (f"missing: {name}" for name in report.lost)
    yield from (f"broken: {fault}" for fault in report.broken)
    yield from ([f"not in vLLM: {report.vllm}"] if report.vllm else [])
    yield from report.notes
    yield from (fault or f"adapter {name}: it fits" for name, fault in report.adapters.items())
    if not report.complete:
        yield "It cannot be served as it is."
        return
    yield f"Memory is that of weights in {_dtype_text(report)}."
    for component, digest in (identities or {}).items():
        yield f"{component} {digest}: executors serve all models that have this one."
    yield "It can be split. `omnibus serve` serves it alone, and `omnibus up --models FILE` with this in FILE:"
    yield json.dumps(declaration, indent=2)


def trial_lines(name: str, trial: TrialReport) -> Iterator[str]:
    """Yield the lines of ``omnibus models check --deep``, or ``--verify``."""
    rows = [
        [each.subject, _figure_text(each.largest), _figure_text(each.bound), each.fault or "equal"]
        for each in trial.comparisons
    ]
    if rows:
        yield from table_lines([name.upper(), "LARGEST DIFFERENCE", "BOUND", "RESULT"], rows)
        yield ""
    yield trial.outcome


def _figure_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def shortest_declaration(report: Report, checkpoint: str, adapters: Sequence[str] = ()) -> dict[str, Any]:
    """Return the shortest declaration that serves the checkpoint and its adapters. Directories are absolute paths."""
    name, path = _name_and_path(checkpoint)
    declaration: dict[str, Any] = {"family": report.family, "checkpoint": path}
    if adapters:
        declaration["adapters"] = dict(map(_name_and_path, adapters))
    sees = report.family == MULTIMODAL and is_gguf(Path(path))
    is_scaled = bool(report.family) and is_gguf(Path(path)) and read_gguf_header(Path(path)).scaling
    if sees or is_scaled or any(is_gguf(Path(adapter)) for adapter in adapters):
        name_of_option = "EL" if sees else "L"
        option = catalog.find_family(report.family)["options"][name_of_option]
        run = {field: option[field] for field in ("components", "service")}
        declaration |= {
            "options": {name_of_option: {**run, "engine": LLAMA_CPP}},
            "paths": [{"options": [name_of_option]}],
        }
    return {"models": {name: declaration}}


def _name_and_path(checkpoint: str) -> tuple[str, str]:
    """Return the name of a checkpoint, and its id or absolute path."""
    if is_id(checkpoint):
        return checkpoint.partition("@")[0].rpartition("/")[2], checkpoint
    path = Path(checkpoint).resolve()
    return path.stem if path.suffix == ".gguf" else path.name, str(path)


def option_bytes(report: Report) -> dict[str, int]:
    """Return the bytes of weights of each option.

    Options with a component that could not be built are omitted. The prefill and decode halves of a language model
    share their weights if one executor runs both.
    """
    sizes = {}
    for name, option in catalog.find_family(report.family)["options"].items():
        parts = {"thinker" if part in catalog.SPLIT else part for part in option["components"]}
        if parts <= report.parts.keys() and all(report.parts[part].nbytes for part in parts):
            sizes[name] = sum(report.parts[part].nbytes for part in parts)
    return sizes


def count_text(number: int) -> str:
    """Return a number of parameters for people, such as 7.5B."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


def _path_lines(paths: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [[">".join(path["options"]), f"{path.get('share', 1):g}"] for path in paths]
    yield from table_lines(["PATH", "SHARE"], rows)


def _memory_text(part: ComponentReport) -> str:
    return size_text(part.nbytes) if part.nbytes else "?"


def _cache_cells(part: ComponentReport) -> list[str]:
    return [
        size_text(part.kv_bytes) if part.kv_bytes else "",
        str(part.context) if part.kv_bytes and part.context else "",
    ]


def _stored_text(report: Report) -> str:
    if not report.stored:
        return "none, a configuration alone"
    dtypes = ", ".join(sorted(report.stored))
    files = "1 file" if report.files == 1 else f"{report.files} files"
    return f"{files}, {size_text(sum(report.stored.values()))}, {dtypes}"


def _dtype_text(report: Report) -> str:
    hint = f" (executors load {DEFAULT_DTYPE} unless OMNIBUS_EXECUTOR_DTYPE={report.dtype})"
    return report.dtype + ("" if report.dtype == DEFAULT_DTYPE or report.dtype in GGUF_BLOCKS else hint)


def _unexpected_faults(report: Report, part: ComponentReport) -> list[str]:
    """Return the faults to report. Of a configuration without weights, only its problem is unexpected."""
    return part.faults if report.stored else [part.problem] if part.problem else []


def _checkpoint_text(model: Mapping[str, Any]) -> str:
    """Return the checkpoint as text, empty for an app's own tasks: theirs is not a path."""
    checkpoint = str(model["checkpoint"])
    return "" if model["family"] == catalog.PYTHON else checkpoint


def _replica_text(options: Mapping[str, int]) -> str:
    return " ".join(name if replicas == 1 else f"{replicas}x{name}" for name, replicas in options.items())


def _family_title(name: str) -> str:
    """Return the title of family ``name``, or a plugin's name."""
    return KNOWN[name].title if name in KNOWN else name
