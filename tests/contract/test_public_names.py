"""A room exports exactly the names in its ``__all__``."""

import importlib
import pkgutil
import types

import pytest

import omnibus

PACKAGES = [module.name for module in pkgutil.iter_modules(omnibus.__path__, "omnibus.") if module.ispkg]
ROOMS = [name for name in PACKAGES if hasattr(importlib.import_module(name), "__all__")]


def list_exports(room: types.ModuleType) -> set[str]:
    """Our public names that the room's ``__init__`` defines or imports, without modules."""
    return {name for name, member in vars(room).items() if not name.startswith("_") and is_ours(member)}


def is_ours(member: object) -> bool:
    return str(getattr(member, "__module__", "")).startswith("omnibus")


def test_some_rooms_list_their_names():
    assert "omnibus.task" in ROOMS


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_exports_what_it_lists(name):
    room = importlib.import_module(name)

    assert list_exports(room) - set(room.__all__) == set()
    assert [missing for missing in room.__all__ if not hasattr(room, missing)] == []
    assert len(room.__all__) == len(set(room.__all__))
