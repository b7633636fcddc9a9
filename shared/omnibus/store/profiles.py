"""Profiles of models in the store, for planners without profile files."""

import logging
from collections.abc import AsyncIterator

from omnibus import profile as profiles
from omnibus.errors import BadRequest
from omnibus.profile import ModelProfile
from omnibus.settings import StoreSettings
from omnibus.store.connection import StoreConnection

log = logging.getLogger(__name__)

_PROFILES = "profiles"


class ProfileStore(StoreConnection):
    """Profiles by model."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._unread: dict[str, bytes] = {}

    async def put_profile(self, profile: ModelProfile) -> None:
        """Store ``profile`` in place of its model's current one. Raises ``BadRequest`` without a model."""
        if not profile.model:
            raise BadRequest("the profile names no model: write its 'model'")
        await self._write_profile(profile, keep=False)

    async def profile(self, model: str) -> ModelProfile | None:
        """Return a profile, or None. Raises ``BadRequest`` if this build cannot read it."""
        body = await self._run_command(self._redis.hget(self._redis_key(_PROFILES), model))
        return profiles.decode_profile(body, _profile_label(model)) if body is not None else None

    async def profiles(self) -> dict[str, ModelProfile]:
        """Return all profiles by model. Those that this build cannot read are logged and left out."""
        bodies = await self._run_command(self._redis.hgetall(self._redis_key(_PROFILES)))
        found = {}
        for key, body in sorted(bodies.items()):
            model = key.decode(errors="replace")
            try:
                found[model] = profiles.decode_profile(body, _profile_label(model))
            except BadRequest as error:
                if self._unread.get(model) != body:
                    self._unread[model] = body
                    log.error("%s", error)
        return found

    async def profile_changes(self) -> AsyncIterator[dict[str, ModelProfile]]:
        """Yield all profiles, at once and after each change. Reconnects automatically.

        If the store loses them, the known ones are written again, since measuring takes long.
        """
        known: dict[str, ModelProfile] = {}

        async def read_profiles() -> dict[str, ModelProfile]:
            found = await self.profiles()
            lost = known.keys() - found.keys()
            for model in lost:
                await self._write_profile(known[model], keep=True)
            return await self.profiles() if lost else found

        async for found in self._follow_channel(_PROFILES, read_profiles):
            known = found
            yield found

    async def _write_profile(self, profile: ModelProfile, keep: bool) -> None:
        """Write and announce a profile. With ``keep`` an existing one stays."""
        async with self._redis.pipeline(transaction=True) as both:
            write = both.hsetnx if keep else both.hset
            write(self._redis_key(_PROFILES), profile.model, profiles.encode_profile(profile))
            both.publish(self._redis_key(_PROFILES), profile.model)
            await self._run_command(both.execute())


def _profile_label(model: str) -> str:
    return f"the store's profile of {model}"
