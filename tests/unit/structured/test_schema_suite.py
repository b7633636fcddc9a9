"""The official test suite of JSON Schema: no accepted schema permits an invalid value, and limits are named."""

import pytest

from tests.json_schema_suite import FileResult, run_suite

#: Reasons for valid values that are not written, by file: each is named in docs/tools.md.
NUMBERS = "a whole number has no fraction and no exponent"
FORMATS = "formats are enforced, also where the suite takes them for annotations"
LEAP_SECONDS = "seconds end at 59"
ADDRESSES = "no quoted names, no IPv6 addresses in mail addresses or with an IPv4 tail"
DIALECT = "keywords are enforced whatever metaschema is named"
LIMITS = {
    "const": (4, NUMBERS),
    "enum": (4, NUMBERS),
    "type": (1, NUMBERS),
    "optional/float-overflow": (1, NUMBERS),
    "format": (10, FORMATS),
    "optional/format/date-time": (2, LEAP_SECONDS),
    "optional/format/time": (6, LEAP_SECONDS),
    "optional/format/email": (4, ADDRESSES),
    "optional/format/ipv6": (4, ADDRESSES),
    "vocabulary": (1, DIALECT),
}
#: Files of which each schema is enforced.
WHOLE = {
    "additionalProperties", "allOf", "anyOf", "const", "default", "enum", "items", "maximum", "minimum", "pattern",
    "patternProperties", "prefixItems", "properties", "required", "type", "multipleOf", "maxItems", "minItems",
    "maxLength", "minLength", "exclusiveMaximum", "exclusiveMinimum",
}  # fmt: skip
#: Reasons for which a schema of those is rejected all the same: nothing fits it, or another keyword stands in it.
OTHER_REASONS = ("Unsatisfiable", "dependentSchemas", "propertyNames", "not disjoint", "too many digits", "next to")


@pytest.fixture(scope="module")
def results() -> dict[str, FileResult]:
    return run_suite()


def test_no_invalid_value_is_let_through(results: dict[str, FileResult]) -> None:
    assert {name: each.loose for name, each in results.items() if each.loose} == {}
    assert sum(each.schemas for each in results.values()) > 400


def test_each_valid_value_that_is_not_written_has_a_named_reason(results: dict[str, FileResult]) -> None:
    assert {name: len(each.narrow) for name, each in results.items() if each.narrow} == {
        name: count for name, (count, _) in LIMITS.items()
    }


def test_most_schemas_are_enforced(results: dict[str, FileResult]) -> None:
    file_reasons = {
        name: {why for why in results[name].rejected.values() if not any(reason in why for reason in OTHER_REASONS)}
        for name in WHOLE
    }

    assert {name: reasons for name, reasons in file_reasons.items() if reasons} == {}
    assert sum(len(each.rejected) for each in results.values()) < 185


def test_each_rejection_names_what_it_is_about(results: dict[str, FileResult]) -> None:
    for each in results.values():
        for description, error in each.rejected.items():
            assert error.startswith("at #") or "failed to compile JSON schema: " in error, description
            assert "Unimplemented keys" not in error, description
