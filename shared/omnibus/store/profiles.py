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
        profiles_by_model = {}
        for key, body in sorted(bodies.items()):
            model = key.decode(errors="replace")
            try:
                profiles_by_model[model] = profiles.decode_profile(body, _profile_label(model))
            except BadRequest as error:
                if self._unread.get(model) != body:
                    self._unread[model] = body
                    log.error("%s", error)
        return profiles_by_model

    async def profile_changes(self) -> AsyncIterator[dict[str, ModelProfile]]:
        """Yield all profiles, at once and after each change. Reconnects automatically.

        If the store loses them, the known ones are written again, since measuring takes long.
        """
        latest: dict[str, ModelProfile] = {}

        async def read_profiles() -> dict[str, ModelProfile]:
            current_profiles = await self.profiles()
            missing_models = latest.keys() - current_profiles.keys()
            for model in missing_models:
                await self._write_profile(latest[model], keep=True)
            return await self.profiles() if missing_models else current_profiles

        async for current_profiles in self._follow_channel(_PROFILES, read_profiles):
            latest = current_profiles
            yield current_profiles

    async def _write_profile(self, profile: ModelProfile, keep: bool) -> None:
        """Write and announce a profile. With ``keep`` an existing one stays."""
        async with self._redis.pipeline(transaction=True) as commands:
            write = commands.hsetnx if keep else commands.hset
            write(self._redis_key(_PROFILES), profile.model, profiles.encode_profile(profile))
            commands.publish(self._redis_key(_PROFILES), profile.model)
            await self._run_command(commands.execute())


def _profile_label(model: str) -> str:
    return f"the store's profile of {model}"
