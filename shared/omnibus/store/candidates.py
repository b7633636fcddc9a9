"""Candidates of models, counts of their comparisons, and the last failed ones."""

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from omnibus.canary import candidate as candidates
from omnibus.canary.candidate import Candidate
from omnibus.errors import Conflict, ProtocolError
from omnibus.store.connection import FunctionRefused, StoreConnection

log = logging.getLogger(__name__)

_CANDIDATES, _COUNTS, _FINDINGS = "candidates", "candidate:counts:", "candidate:findings:"
#: Findings stored for each candidate, and seconds that they and the counts are stored after the last comparison.
MAX_FINDINGS, KEPT_SECONDS = 50, 30 * 24 * 3600


class CandidateStore(StoreConnection):
    """One candidate for each model: the current or the last one."""

    async def candidates(self) -> dict[str, Candidate]:
        """Return all candidates by model. Those that this build cannot read are logged and left out."""
        candidates_by_model = {}
        bodies = await self._run_command(self._redis.hgetall(self._redis_key(_CANDIDATES)))
        for key, body in sorted(bodies.items()):
            model = key.decode(errors="replace")
            try:
                candidates_by_model[model] = candidates.decode_candidate(self._seal.verify(_label(model), body))
            except ProtocolError as error:
                log.error("the candidate for %r is left out: %s", model, error)
        return candidates_by_model

    async def put_candidate(self, candidate: Candidate, before: Candidate | None) -> None:
        """Write ``candidate`` if its model's is still ``before``, else raise ``Conflict``."""
        previous_state = f"{before.id} {before.state}" if before is not None else ""
        body = self._seal.sign(_label(candidate.model), candidates.encode_candidate(candidate))
        try:
            await self._run_function(
                "omnibus_put_candidate", (_CANDIDATES, _CANDIDATES), candidate.model, previous_state, body
            )
        except FunctionRefused as error:
            raise Conflict(
                f"the candidate for {candidate.model} was changed meanwhile: check `omnibus canary status`",
                param="model",
            ) from error

    def candidate_changes(self) -> AsyncIterator[dict[str, Candidate]]:
        """Yield all candidates, at once and after each change. Reconnects automatically."""
        return self._follow_channel(_CANDIDATES, self.candidates)

    # Results of comparisons

    async def add_counts(self, id: str, counts: Mapping[str, int], finding: Mapping[str, Any] | None = None) -> None:
        """Add ``counts`` to those of candidate ``id``, and store a failure's ``finding``."""
        key, findings = self._redis_key(_COUNTS + id), self._redis_key(_FINDINGS + id)
        async with self._redis.pipeline(transaction=True) as together:
            for name, count in counts.items():
                together.hincrby(key, name, count)
            together.expire(key, KEPT_SECONDS)
            if finding is not None:
                together.lpush(findings, msgspec.json.encode(finding))
                together.ltrim(findings, 0, MAX_FINDINGS - 1)
                together.expire(findings, KEPT_SECONDS)
            await self._run_command(together.execute())

    async def counts(self, id: str) -> dict[str, int]:
        """Return all counts of candidate ``id``."""
        count_fields = await self._run_command(self._redis.hgetall(self._redis_key(_COUNTS + id)))
        return {name.decode(errors="replace"): int(count) for name, count in sorted(count_fields.items())}

    async def findings(self, id: str) -> list[dict[str, Any]]:
        """Return the last failed comparisons of candidate ``id``, newest first."""
        finding_bodies = await self._run_command(self._redis.lrange(self._redis_key(_FINDINGS + id), 0, -1))
        return [msgspec.json.decode(body) for body in finding_bodies]


def _label(model: str) -> str:
    return f"the candidate for {model!r}"
