"""Validation of API key records."""

import pytest

from omnibus.api_key import KeyRecord, check_key_record, generate_key, hash_key
from omnibus.errors import BadRequest


def test_the_record_of_a_key_may_be_kept():
    record = KeyRecord(hash_key(generate_key()), "team-a")

    assert check_key_record(record) is record


@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "0" * 64 + "\n", "A" * 64, "omnibus-key"])
def test_what_is_no_hash_is_refused(sha256: str):
    with pytest.raises(BadRequest, match="64 hex digits"):
        check_key_record(KeyRecord(sha256, "team-a"))


@pytest.mark.parametrize("tenant", ["", "a b", "a/b", "a" * 65, "team\n"])
def test_what_is_no_tenant_is_refused(tenant: str):
    with pytest.raises(BadRequest, match="is not a tenant name"):
        check_key_record(KeyRecord("0" * 64, tenant))
