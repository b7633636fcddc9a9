"""Routes without alternatives are cached until an alternative appears."""

import pytest

from omnibus.plan import Path
from omnibus_gateway.routing import only_routes
from omnibus_gateway.routing.router import ExecutorRoute, Router
from tests.unit.gateway.routing.test_router import STAGES, calls, plan, router, status

ONLY = Path("EL", {"vision": "EL", "thinker": "EL"}, 30)


@pytest.fixture
def made() -> Router:
    found = router("g1", ("a", "EL"))
    found.plan = plan(ONLY)
    return found


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[ExecutorRoute]:
    """The cached routes."""
    found: list[ExecutorRoute] = []
    keep = only_routes.OnlyRoutes.keep

    def noting(self: only_routes.OnlyRoutes, *rest: object) -> None:
        found.append(rest[-1])  # type: ignore[arg-type]
        keep(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(only_routes.OnlyRoutes, "keep", noting)
    return found


class Asking:
    """Routes requests of one kind."""

    def __init__(self, made: Router) -> None:
        self._router = made
        self._assignment = made.assign(calls(*STAGES), "m")

    def __call__(self, work: tuple[int, ...] = (3, 4), **more: object) -> ExecutorRoute:
        ticket = self._router.issue_ticket(self._assignment.model, self._assignment.kind)
        return self._router.route(self._assignment, ticket, work=work, **more)  # type: ignore[arg-type]


def test_the_only_route_is_found_once(made: Router, kept: list[ExecutorRoute]):
    ask = Asking(made)

    assert ask() == ask() == ask() == ExecutorRoute("EL", ("EL", "EL"), ("a", "a"), (3, 4))
    assert len(kept) == 1
    assert ask(work=(5, 6)).work == (5, 6)


def test_another_executor_makes_a_choice(made: Router, kept: list[ExecutorRoute]):
    ask = Asking(made)
    ask()
    made.members.handle_status(status("b", "EL"))
    found = [ask().executors[0] for _ in range(2)]

    assert (set(found), len(kept)) == ({"a", "b"}, 1)


@pytest.mark.parametrize("state", ["draining", "gone"])
def test_an_executor_that_leaves_is_found_no_more(made: Router, state: str):
    ask = Asking(made)
    made.members.handle_status(status("z", "E"))
    ask()
    made.members.handle_status(status("b", "EL"))
    made.members.handle_status(status("a", "EL", state=state))

    assert ask().executors == ("b", "b")


def test_a_silent_executor_is_looked_at_each_time(made: Router, monkeypatch: pytest.MonkeyPatch):
    ask = Asking(made)
    ask()
    member = made.members.get("a")
    assert member is not None
    member.seen -= 1000.0

    with pytest.raises(Exception, match="no live executor"):
        ask()


def test_who_excludes_an_executor_gets_no_remembered_route(made: Router):
    ask = Asking(made)
    ask()

    with pytest.raises(Exception, match="no live executor"):
        ask(exclude=frozenset({"a"}))
