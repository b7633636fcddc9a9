"""Profiles of models: what was measured, for planners that have no file of it."""

import logging
from collections.abc import AsyncIterator

from omnibus import profile as profiles
from omnibus.errors import BadRequest
from omnibus.profile import ModelProfile
from omnibus.settings import StoreSettings
from omnibus.store.connection import Connection

log = logging.getLogger(__name__)

_PROFILES = "profiles"


class Profiles(Connection):
    """Profiles by model."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._unread: dict[str, bytes] = {}

    async def put_profile(self, profile: ModelProfile) -> None:
        """Keep ``profile`` as that of its model, in place of any other. Raises ``BadRequest`` when it names none."""
        if not profile.model:
            raise BadRequest("the profile names no model: write its 'model'")
        await self._put(profile, keep=False)

    async def profile(self, model: str) -> ModelProfile | None:
        """None when there is none. Raises ``BadRequest`` for one that this build cannot read."""
        body = await self._call(self._redis.hget(self._key(_PROFILES), model))
        return profiles.decode(body, _called(model)) if body is not None else None

    async def profiles(self) -> dict[str, ModelProfile]:
        """All profiles by model. One that this build cannot read is logged and left out."""
        bodies = await self._call(self._redis.hgetall(self._key(_PROFILES)))
        found = {}
        for key, body in sorted(bodies.items()):
            model = key.decode(errors="replace")
            try:
                found[model] = profiles.decode(body, _called(model))
            except BadRequest as error:
                if self._unread.get(model) != body:
                    self._unread[model] = body
                    log.error("%s", error)
        return found

    async def profile_changes(self) -> AsyncIterator[dict[str, ModelProfile]]:
        """All profiles, at once and at each change. Reconnects by itself.

        A store that lost them gets back what this follower knew: to measure again takes long.
        """
        known: dict[str, ModelProfile] = {}

        async def read() -> dict[str, ModelProfile]:
            found = await self.profiles()
            lost = known.keys() - found.keys()
            for model in lost:
                await self._put(known[model], keep=True)
            return await self.profiles() if lost else found

        async for found in self._follow(_PROFILES, read):
            known = found
            yield found

    async def _put(self, profile: ModelProfile, keep: bool) -> None:
        """Write it and say so; ``keep``: not in place of another one."""
        async with self._redis.pipeline(transaction=True) as both:
            write = both.hsetnx if keep else both.hset
            write(self._key(_PROFILES), profile.model, profiles.encode(profile))
            both.publish(self._key(_PROFILES), profile.model)
            await self._call(both.execute())


def _called(model: str) -> str:
    return f"the store's profile of {model}"
