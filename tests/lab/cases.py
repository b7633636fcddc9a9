"""Cases as JSON: instances, tasks and their parameters.

    {"id": "budget-01", "kind": "budget", "task": {"gpus": 6}, "instance": {
        "components": ["E", "L"], "order": [["E", "L"]], "options": {"EL": {"comps": ["E", "L"], "gpus": 1}},
        "types": {"img": {"comps": ["E", "L"], "pi": 1.0}}, "paths": {"img": [["EL"]]},
        "seconds": [{"option": "EL", "type": "img", "path": 0, "sec": 0.5}]}}

Requests can take only the listed paths; missing seconds are 0. All GPUs are of one type.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omnibus.errors import BadRequest
from omnibus_planner.solve.flow_network import Network
from omnibus_planner.solve.problem import PlanningProblem, RequestType, SolverOption, require
from tests.lab.listed_paths import listed_paths

T = TypeVar("T")


class _CaseOption(msgspec.Struct):
    comps: tuple[str, ...]
    gpus: int = 1


class _CaseType(msgspec.Struct):
    comps: tuple[str, ...]
    pi: float


class _Row(msgspec.Struct):
    option: str
    type: str
    path: int
    sec: float


class Instance(msgspec.Struct):
    """Options and request types, the allowed paths, and seconds per request."""

    components: tuple[str, ...]
    options: dict[str, _CaseOption]
    types: dict[str, _CaseType]
    order: tuple[tuple[str, str], ...] = ()
    paths: dict[str, tuple[tuple[str, ...], ...]] = {}
    seconds: tuple[_Row, ...] = ()

    def build_problem(self) -> PlanningProblem:
        # A start always costs 1: these cases count replicas.
        options = {
            name: SolverOption(option.comps, option.gpus, start_s=1 / max(1, option.gpus))
            for name, option in self.options.items()
        }
        types = {name: RequestType(kind.comps, kind.pi) for name, kind in self.types.items()}
        return PlanningProblem(self.components, options, types, self.order)

    def build_network(self) -> Network:
        seconds = {(row.type, row.path, row.option): row.sec for row in self.seconds}
        require(len(seconds) == len(self.seconds), "the same option, type and path have seconds twice")
        return listed_paths(self.build_problem(), self.paths, seconds)


class Case(msgspec.Struct):
    """One question. Other fields of its JSON, such as the answer, are ignored."""

    id: str
    kind: str
    task: Any
    instance: Instance | None = None

    def task_as(self, kind: type[T]) -> T:
        """Return the task as ``kind``. Raises ``BadRequest``."""
        return _convert_value(self.task, kind, f"the task of case {self.id}")

    def require_instance(self) -> Instance:
        """Return the instance. Raises ``BadRequest`` if there is none."""
        if self.instance is None:
            raise BadRequest(f"case {self.id} has no instance")
        return self.instance


def read_cases(path: str) -> dict[str, Any]:
    """Return the unchecked cases of a file by id. Raises ``BadRequest`` with the file and its fault."""
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is no JSON: {error}") from error
    require(isinstance(found, list), f"{path} holds no list of cases")
    ids = [str(case.get("id", at)) if isinstance(case, dict) else str(at) for at, case in enumerate(found)]
    require(len(set(ids)) == len(ids), f"{path} holds two cases with the same id")
    return dict(zip(ids, found, strict=True))


def parse_case(value: Any) -> Case:
    """Check one case. Raises ``BadRequest`` with the name of the field."""
    return _convert_value(value, Case, "a case")


def _convert_value(value: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{what}: {error}") from error
