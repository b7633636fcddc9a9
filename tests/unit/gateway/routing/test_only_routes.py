"""Routes without alternatives are cached until an alternative appears."""

import pytest

from omnibus.plan import Path
from omnibus_gateway.routing import paths as only_routes
from omnibus_gateway.routing.router import ExecutorRoute, Router
from tests.unit.gateway.routing.test_router import STAGES, make_calls, make_plan, make_router, make_status

ONLY = Path("EL", {"vision": "EL", "thinker": "EL"}, 30)


@pytest.fixture
def tiny_router() -> Router:
    new_router = make_router("g1", ("a", "EL"))
    new_router.plan = make_plan(ONLY)
    return new_router


@pytest.fixture
def cached_routes(monkeypatch: pytest.MonkeyPatch) -> list[ExecutorRoute]:
    """The cached routes."""
    routes: list[ExecutorRoute] = []
    keep = only_routes.OnlyRoutes.keep

    def note_route(self: only_routes.OnlyRoutes, *rest: object) -> None:
        routes.append(rest[-1])  # type: ignore[arg-type]
        keep(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(only_routes.OnlyRoutes, "keep", note_route)
    return routes


class Asking:
    """Routes requests of one kind."""

    def __init__(self, target_router: Router) -> None:
        self._router = target_router
        self._assignment = target_router.assign(make_calls(*STAGES), "m")

    def __call__(self, work: tuple[int, ...] = (3, 4), **more: object) -> ExecutorRoute:
        ticket = self._router.issue_ticket(self._assignment.model, self._assignment.kind)
        return self._router.route(self._assignment, ticket, work=work, **more)  # type: ignore[arg-type]


def test_the_only_route_is_found_once(tiny_router: Router, cached_routes: list[ExecutorRoute]):
    ask = Asking(tiny_router)

    assert ask() == ask() == ask() == ExecutorRoute("EL", ("EL", "EL"), ("a", "a"), (3, 4))
    assert len(cached_routes) == 1
    assert ask(work=(5, 6)).work == (5, 6)


def test_another_executor_makes_a_choice(tiny_router: Router, cached_routes: list[ExecutorRoute]):
    ask = Asking(tiny_router)
    ask()
    tiny_router.members.handle_status(make_status("b", "EL"))
    executor_ids = [ask().executors[0] for _ in range(2)]

    assert (set(executor_ids), len(cached_routes)) == ({"a", "b"}, 1)


@pytest.mark.parametrize("state", ["draining", "gone"])
def test_an_executor_that_leaves_is_found_no_more(tiny_router: Router, state: str):
    ask = Asking(tiny_router)
    tiny_router.members.handle_status(make_status("z", "E"))
    ask()
    tiny_router.members.handle_status(make_status("b", "EL"))
    tiny_router.members.handle_status(make_status("a", "EL", state=state))

    assert ask().executors == ("b", "b")


def test_a_silent_executor_is_looked_at_each_time(tiny_router: Router, monkeypatch: pytest.MonkeyPatch):
    ask = Asking(tiny_router)
    ask()
    member = tiny_router.members.get("a")
    assert member is not None
    member.seen -= 1000.0

    with pytest.raises(Exception, match="no live executor"):
        ask()


def test_who_excludes_an_executor_gets_no_remembered_route(tiny_router: Router):
    ask = Asking(tiny_router)
    ask()

    with pytest.raises(Exception, match="no live executor"):
        ask(exclude=frozenset({"a"}))
