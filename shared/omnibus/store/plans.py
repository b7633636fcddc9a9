"""Plans: the current, the staged and the previous ones."""

import logging
from collections.abc import AsyncIterator
from typing import NamedTuple
from zlib import crc32

import msgspec

from omnibus import plan as plans
from omnibus.errors import NotFound, ProtocolError, StoreUnavailable
from omnibus.graph import UNREADABLE
from omnibus.plan import Plan
from omnibus.store.connection import FunctionRefused, StoreConnection
from omnibus.store.seal import Seal

log = logging.getLogger(__name__)

_EPOCH, _PLAN, _HISTORY, _STAGED = "plan:epoch", "plan:", "plan:history", "plan:staged"
_CELLS = "plan:cells"
_PLAN_LABEL = "the plan"
_LEAD, _PIN, _PROBLEMS, _CHANNEL = "plan:lead", "plan:pin", "plan:problems", "plan"


class StaleEpoch(StoreUnavailable):
    """Another planner wrote a newer plan. ``current`` is its epoch."""

    code = "stale_epoch"

    def __init__(self, current: int) -> None:
        super().__init__(f"epoch {current} is already current: read it and plan again")
        self.current = current


class PlanLed(StoreUnavailable):
    """Another planner leads the current change."""

    code = "plan_led"

    def __init__(self, leader: str) -> None:
        super().__init__(f"the planner {leader} leads a change of the plan: wait until it is over")


class PlanState(NamedTuple):
    """Epochs of the current, the staged and the pinned plan: 0 for none.

    ``mark`` differs between staged plans with the same epoch.
    """

    epoch: int
    staged: int
    pin: int
    mark: int


class PlanHistoryEntry(NamedTuple):
    """An epoch of the history.

    ``plan`` is None if this build cannot read it; ``fault`` is the reason.
    """

    epoch: int
    plan: Plan | None
    fault: str


class PlanProblem(msgspec.Struct, frozen=True):
    """Problem that blocks a plan. Times are Unix seconds; ``again`` is the next attempt's."""

    at: float
    message: str
    again: float = 0.0


class _Head(msgspec.Struct):
    epoch: int


class _CellPart(msgspec.Struct):
    part: float


_cell_part = msgspec.json.Decoder(_CellPart).decode
_head = msgspec.json.Decoder(_Head).decode
_problem = msgspec.json.Decoder(PlanProblem).decode


class PlanStore(StoreConnection):
    """Plans by epoch. A change has three steps: stage, wait until executors are ready, swap."""

    async def epoch(self) -> int:
        """Return the current epoch, 0 before the first plan."""
        return int(await self._run_command(self._redis.get(self._redis_key(_EPOCH))) or 0)

    async def plan_state(self) -> PlanState:
        """Return the state of the plans, read in one step."""
        epoch, staged_plan, pin = await self._run_command(
            self._redis.mget(*map(self._redis_key, (_EPOCH, _STAGED, _PIN)))
        )
        mark = _document_mark(_unsigned_document(staged_plan)) if staged_plan is not None else 0
        return PlanState(int(epoch or 0), _epoch_of(staged_plan), int(pin or 0), mark)

    async def plan(self, epoch: int = 0) -> Plan | None:
        """Return the current plan, or that of ``epoch``: None if it is not stored.

        Raises ``ProtocolError`` if this build cannot read it, or its signature is invalid.
        """
        number = epoch or await self.epoch()
        body = await self._run_command(self._redis.get(self._redis_key(f"{_PLAN}{number}"))) if number else None
        return self._decode_plan(body) if body is not None else None

    async def swap_plan(self, plan: Plan, then: Plan | None = None, pin: bool = False) -> None:
        """Make ``plan`` current and ``then`` the staged one in one atomic step.

        The plan is pinned or unpinned as ``pin`` requests. Without ``then``, no plan is staged. Raises ``StaleEpoch``
        unless it is newer than the current plan, and not older than the staged one.
        """
        keys = (_EPOCH, _PLAN, _HISTORY, _STAGED, _LEAD, _PIN, _CHANNEL)
        history_size = str(max(1, self._settings.history))
        body, after = (self._encode_plan(each) if each is not None else "" for each in (plan, then))
        try:
            await self._run_function(
                "omnibus_swap_plan", keys, str(plan.epoch), body, after, history_size, "1" if pin else "0"
            )
        except FunctionRefused as error:
            raise StaleEpoch(int(error.what)) from error

    def epoch_changes(self) -> AsyncIterator[int]:
        """Yield epochs as they become current; 0 if the store loses its plan. Reconnects automatically."""
        return self._follow_channel(_CHANNEL, self.epoch)

    def plan_changes(self) -> AsyncIterator[PlanState]:
        """Yield the state of the plans, at once and after each change. Reconnects automatically."""
        return self._follow_channel(_CHANNEL, self.plan_state)

    # The staged plan

    async def staged_plan(self) -> Plan | None:
        """Return the staged plan, or None. Raises ``ProtocolError``."""
        body = await self._run_command(self._redis.get(self._redis_key(_STAGED)))
        return self._decode_plan(body) if body is not None else None

    async def stage_plan(self, plan: Plan, owner: str, seconds: float) -> None:
        """Stage ``plan``: its executors start, but it does not serve yet.

        ``owner`` leads the change for ``seconds``. Raises ``PlanLed`` while another planner leads a change, and
        ``StaleEpoch`` unless ``plan`` is newer than both the current and the staged plan.
        """
        keys = (_EPOCH, _STAGED, _LEAD, _CHANNEL)
        lasts = str(round(seconds * 1000))
        try:
            await self._run_function("omnibus_stage_plan", keys, str(plan.epoch), self._encode_plan(plan), owner, lasts)
        except FunctionRefused as error:
            raise PlanLed(error.what) if error.reason == "LED" else StaleEpoch(int(error.what)) from error

    async def unstage_plan(self, owner: str) -> bool:
        """Discard the staged plan; return False if there is none or another planner leads."""
        return bool(await self._run_function("omnibus_unstage_plan", (_STAGED, _LEAD, _CHANNEL), owner))

    async def lead_plan(self, owner: str, seconds: float) -> bool:
        """Lead the current change for another ``seconds``, or start to lead it.

        Returns False if another planner leads.
        """
        return bool(await self._run_function("omnibus_lead_plan", (_LEAD,), owner, str(round(seconds * 1000))))

    async def take_lead(self, name: str, owner: str, seconds: float) -> bool:
        """Lead the work ``name`` for ``seconds``, or longer than before; False while another ``owner`` leads it."""
        return bool(
            await self._run_function("omnibus_lead_plan", (f"{_LEAD}:{name}",), owner, str(round(seconds * 1000)))
        )

    # History

    async def plan_history(self, limit: int = 20) -> list[PlanHistoryEntry]:
        """Return the last ``limit`` epochs, newest first."""
        epochs = [
            int(each)
            for each in await self._run_command(self._redis.zrevrange(self._redis_key(_HISTORY), 0, limit - 1))
        ]
        bodies = (
            await self._run_command(self._redis.mget([self._redis_key(f"{_PLAN}{epoch}") for epoch in epochs]))
            if epochs
            else []
        )
        return [self._history_entry(epoch, body) for epoch, body in zip(epochs, bodies, strict=True)]

    async def pin_plan(self, epoch: int) -> None:
        """Pin the plan of ``epoch``: the planner serves no other. Raises ``NotFound`` if it is not stored."""
        if not await self._run_function("omnibus_pin_plan", (_PIN, _PLAN, _CHANNEL), str(max(epoch, -1) or -1)):
            raise NotFound(f"there is no plan of epoch {epoch}: `omnibus plan history` lists those that are stored")

    async def unpin_plan(self) -> None:
        """Remove the pin, so that the planner plans again."""
        await self._run_function("omnibus_pin_plan", (_PIN, _PLAN, _CHANNEL), "0")

    # Cells

    async def cell_shares(self) -> dict[str, float]:
        """Return cells' parts of their planned shares, by ``model/cell``.

        Operators set them; the default is 1. They are not signed, and neither is a pin: they only choose within signed
        plans.
        """
        shares: dict[str, float] = {}
        for key, body in sorted((await self._run_command(self._redis.hgetall(self._redis_key(_CELLS)))).items()):
            name = key.decode(errors="replace")
            try:
                shares[name] = max(0.0, _cell_part(body).part)
            except UNREADABLE as error:
                log.error("the share of cell %s stays as planned: %s", name, error)
        return shares

    async def put_cell_share(self, model: str, cell: str, share: float) -> None:
        """Set the part of its planned share that ``cell`` gets: 0 drains it, 1 is the plan's."""
        key, name = self._redis_key(_CELLS), f"{model}/{cell}"
        async with self._redis.pipeline(transaction=True) as together:
            if share == 1.0:
                together.hdel(key, name)
            else:
                together.hset(key, name, msgspec.json.encode(_CellPart(share)))
            together.publish(key, name)
            await self._run_command(together.execute())

    def cell_share_changes(self) -> AsyncIterator[dict[str, float]]:
        """Yield ``cell_shares``, at once and after each change. Reconnects automatically."""
        return self._follow_channel(_CELLS, self.cell_shares)

    # Problems

    async def plan_problems(self) -> dict[str, PlanProblem]:
        """Return the problems that block plans, by the name of their reporter."""
        bodies = await self._run_command(self._redis.hgetall(self._redis_key(_PROBLEMS)))
        problems = {}
        for name, body in sorted(bodies.items()):
            try:
                problems[name.decode(errors="replace")] = _problem(body)
            except UNREADABLE:
                continue  # of another build
        return problems

    async def put_problem(self, reporter: str, problem: PlanProblem | None) -> None:
        """Report a problem of ``reporter``, or with None that it is solved."""
        key = self._redis_key(_PROBLEMS)
        if problem is None:
            await self._run_command(self._redis.hdel(key, reporter))
        else:
            await self._run_command(self._redis.hset(key, reporter, msgspec.json.encode(problem)))

    def _encode_plan(self, plan: Plan) -> str:
        return self._seal.sign(_PLAN_LABEL, plans.encode_plan(plan))

    def _decode_plan(self, body: bytes) -> Plan:
        return plans.decode_plan(self._seal.verify(_PLAN_LABEL, body))

    def _history_entry(self, epoch: int, body: bytes | None) -> PlanHistoryEntry:
        if body is None:
            return PlanHistoryEntry(epoch, None, "it is lost")
        try:
            return PlanHistoryEntry(epoch, self._decode_plan(body), "")
        except ProtocolError as error:
            return PlanHistoryEntry(epoch, None, error.message)


def plan_mark(plan: Plan) -> int:
    """Return ``PlanState.mark`` while ``plan`` is staged."""
    return _document_mark(plans.encode_plan(plan))


def _document_mark(document: bytes) -> int:
    return crc32(document)


def _unsigned_document(body: bytes) -> bytes:
    """Return a stored plan without its signature, unchecked."""
    return Seal("").verify(_PLAN_LABEL, body)


def _epoch_of(body: bytes | None) -> int:
    try:
        return _head(body).epoch if body is not None else 0
    except UNREADABLE:
        return 0
