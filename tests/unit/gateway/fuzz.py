"""Requests generated from an OpenAPI document: valid ones, and variants with an error."""

from typing import Any

from hypothesis import strategies as st

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

#: Any JSON at all.
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


class Schemas:
    """Values of the schemas of a document. ``known_values`` adds values by property name."""

    def __init__(self, document: dict[str, Any], known_values: dict[str, st.SearchStrategy[Any]]) -> None:
        self._components = document["components"]["schemas"]
        self._known = known_values

    def body(self, name: str, fine: dict[str, Any]) -> st.SearchStrategy[Any]:
        """Return a strategy for the component ``name``.

        It draws a valid value, one with a spoilt property, ``fine`` with up to three properties changed, or junk.
        """
        whole = self.of({"$ref": f"#/components/schemas/{name}"})
        changes = st.lists(st.sampled_from(self._properties(name)), max_size=3, unique_by=lambda each: each[0])
        changed_bodies = changes.flatmap(lambda few: st.fixed_dictionaries(dict(few))).map(lambda few: {**fine, **few})
        return (
            changed_bodies | whole | st.builds(_spoil_value, whole | changed_bodies, st.integers(0, 100), JUNK) | JUNK
        )

    def _properties(self, name: str) -> list[tuple[str, st.SearchStrategy[Any]]]:
        properties = self._components[name]["properties"].items()
        return [
            (key, self._known.get(key, self.of(each))) for key, each in properties if each.get("format") != "binary"
        ]

    def of(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "$ref" in schema:
            return self.of(self._components[schema["$ref"].rsplit("/", 1)[1]])
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return st.one_of([self.of(each) for each in schema[several]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "const" in schema:
            return st.just(schema["const"])
        kind = schema.get("type")
        return getattr(self, f"_{kind}")(schema) if isinstance(kind, str) else JUNK

    def _object(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        required_names = set(schema.get("required", ()))
        values = {
            name: self._known.get(name, st.nothing()) | self.of(each)
            for name, each in schema.get("properties", {}).items()
            if each.get("format") != "binary"
        }
        must = {name: value for name, value in values.items() if name in required_names}
        may = {name: value for name, value in values.items() if name not in required_names}
        return st.fixed_dictionaries(must, optional=may)

    def _array(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        least = schema.get("minItems", 0)
        return st.lists(self.of(schema.get("items", {})), min_size=least, max_size=max(least, 2))

    def _string(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        return st.text(st.characters(exclude_categories=["Cs"]), min_size=schema.get("minLength", 0), max_size=12)

    def _integer(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        least, most = schema.get("minimum"), schema.get("maximum")
        return st.integers(least, most if most is not None or least is None else least + 2**40)

    def _number(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False, allow_infinity=False)

    def _boolean(self, _: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.booleans()

    def _null(self, _: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.none()


def _spoil_value(value: Any, place: int, junk: Any) -> Any:
    if not isinstance(value, dict) or not value:
        return junk
    name = sorted(value)[place % len(value)]
    return {**value, name: junk}
