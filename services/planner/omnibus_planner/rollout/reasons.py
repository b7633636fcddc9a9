"""Short reason for a new plan."""

from collections.abc import Mapping

from omnibus.app_record import AppRecord, base_app_name

#: Most apps that are listed by name.
MAX_NAMED_APPS = 3


def describe_app_changes(before: Mapping[str, AppRecord], after: Mapping[str, AppRecord]) -> str:
    """Describe the changes of apps: ``app poem registered``. A kept version counts as its app."""
    were, are = ({base_app_name(name) for name in apps} for apps in (before, after))
    changed_names = {
        base_app_name(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    }
    descriptions = [
        f"app {name} {'registered' if name not in were else 'updated' if name in are else 'unregistered'}"
        for name in sorted(changed_names)
    ]
    return ", ".join(descriptions) if len(descriptions) <= MAX_NAMED_APPS else f"{len(descriptions)} apps changed"
