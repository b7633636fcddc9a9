"""Factors on the seconds of roles that simulations of whole plans have found: what a mix of them loses, or gains."""

from collections.abc import Collection, Iterable, Mapping

#: Factor on the seconds of roles that nobody measured: what is guessed looks best to whoever looks for the best.
UNMEASURED_FACTOR = 1.1

#: A request type, an option, and the components of the type that it runs.
Role = tuple[str, str, frozenset[str]]


class CostCorrections:
    """Factors by role of ``options``, whose components are given by name.

    ``measured`` are roles with rows in the profile, their type is "" for any. Roles that were not measured are guessed
    for options with several components alone.
    """

    def __init__(self, options: Mapping[str, tuple[str, ...]], measured: Collection[Role]) -> None:
        self.version = 0  # a new one with each change
        self._several = frozenset(name for name, components in options.items() if len(components) > 1)
        self._measured = frozenset(measured)
        self._found: dict[Role, float] = {}
        self._mixing = dict.fromkeys(options, 1.0)
        self._guess = 1.0

    def clear(self) -> None:
        """Forget what simulations have found: the seconds that it corrected are others now."""
        self._found.clear()
        self._mixing = dict.fromkeys(self._mixing, 1.0)
        self._guess = 1.0
        self.version += 1

    def penalise_unmeasured(self) -> None:
        """From now on roles that nobody measured cost ``UNMEASURED_FACTOR`` more."""
        if self._guess != UNMEASURED_FACTOR:
            self._guess = UNMEASURED_FACTOR
            self.version += 1

    def correct_roles(self, option: str, roles: Iterable[tuple[str, frozenset[str]]], factor: float) -> None:
        """Multiply the seconds of ``roles``, by request type, of ``option``.

        Where several components lose by taking turns, any other mix of roles would lose as well: all roles are slower.
        """
        if factor > 1 and option in self._several:
            self._mixing[option] *= factor
            self._found |= {role: found * factor for role, found in self._found.items() if role[1] == option}
        else:
            for kind, components in roles:
                self._found[kind, option, components] = self.factor(kind, option, components) * factor
        self.version += 1

    def factor(self, kind: str, option: str, components: Iterable[str]) -> float:
        """Factor on the seconds of a role."""
        role = kind, option, frozenset(components)
        if role in self._found:
            return self._found[role]
        guessed = option in self._several and not {role, ("", *role[1:])} & self._measured
        return self._mixing.get(option, 1.0) * (self._guess if guessed else 1.0)
