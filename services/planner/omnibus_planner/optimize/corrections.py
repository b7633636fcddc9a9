"""Factors on the seconds of roles, from simulations of whole plans: roles in a mix slow down, or speed up."""

from collections.abc import Collection, Iterable, Mapping

#: Factor on the seconds of roles that were not measured: a search for the best plan prefers optimistic estimates.
UNMEASURED_FACTOR = 1.1

#: A request type, an option, and the components of the type that it runs.
Role = tuple[str, str, frozenset[str]]


class CostCorrections:
    """Factors by role of ``options``, which map option names to components.

    ``measured`` are the roles with rows in the profile; their type is "" for any. Only for options with several
    components are unmeasured roles estimates.
    """

    def __init__(self, options: Mapping[str, tuple[str, ...]], measured: Collection[Role]) -> None:
        self.version = 0  # a new one with each change
        self._several = frozenset(name for name, components in options.items() if len(components) > 1)
        self._measured = frozenset(measured)
        self._found: dict[Role, float] = {}
        self._mixing = dict.fromkeys(options, 1.0)
        self._guess = 1.0

    def clear(self) -> None:
        """Discard the factors: the seconds that they corrected have changed."""
        self._found.clear()
        self._mixing = dict.fromkeys(self._mixing, 1.0)
        self._guess = 1.0
        self.version += 1

    def penalise_unmeasured(self) -> None:
        """Multiply the cost of unmeasured roles by ``UNMEASURED_FACTOR``."""
        if self._guess != UNMEASURED_FACTOR:
            self._guess = UNMEASURED_FACTOR
            self.version += 1

    def correct_roles(self, option: str, roles: Iterable[tuple[str, frozenset[str]]], factor: float) -> None:
        """Multiply the seconds of ``roles``, by request type, of ``option``.

        If several components lose time by taking turns, any other mix of roles would lose it too: all roles become
        slower.
        """
        if factor > 1 and option in self._several:
            self._mixing[option] *= factor
            self._found |= {role: found * factor for role, found in self._found.items() if role[1] == option}
        else:
            for kind, components in roles:
                self._found[kind, option, components] = self.factor(kind, option, components) * factor
        self.version += 1

    def factor(self, kind: str, option: str, components: Iterable[str]) -> float:
        """Return the factor on the seconds of a role."""
        role = kind, option, frozenset(components)
        if role in self._found:
            return self._found[role]
        guessed = option in self._several and not {role, ("", *role[1:])} & self._measured
        return self._mixing.get(option, 1.0) * (self._guess if guessed else 1.0)
