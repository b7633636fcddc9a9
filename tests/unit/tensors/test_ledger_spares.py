"""Blocks in the ledger that are granted before their tensors exist."""

from tests.unit.tensors.ledgers import read_lease


def test_readers_may_be_faster_than_the_word_of_the_producer(desk):
    lease = desk.ledger.grant_spare(desk.producer, 200)
    read_lease(desk, lease)
    desk.call_verb("hold", desk.other, lease)
    assert (len(desk.ledger), len(desk.ledger.spares)) == (0, 1)

    desk.ledger.use_spare(lease, b"i", 100, 2, 9e9)
    desk.call_verb("seal", desk.producer, lease)
    assert (len(desk.ledger), desk.ledger.spares, lease.readers) == (1, {}, 1)
    desk.call_verb("release", desk.other, lease)

    assert desk.empty()
    assert desk.ledger.freed == {"released": 1}


def test_a_spare_that_is_read_already_when_its_producer_dies_is_lost_with_its_word(desk):
    lease = desk.ledger.grant_spare(desk.producer, 200)
    desk.call_verb("hold", desk.reader, lease)

    desk.ledger.remove_owner(desk.producer)

    assert desk.lingering == [lease]
    assert desk.generation_in_memory(lease) == 0
    desk.call_verb("release", desk.reader, lease)
    assert desk.empty()
    assert (desk.ledger.freed, desk.ledger.spare_bytes) == ({"orphaned": 1}, 0)


def test_spares_are_no_leases(desk):
    spare = desk.ledger.grant_spare(desk.producer, 200)
    lease = desk.grant()

    assert [row["id"] for row in desk.ledger.list_leases(10)] == [lease.id]
    assert (len(desk.ledger), desk.ledger.granted, desk.ledger.spare_bytes) == (1, 1, 264)
    desk.call_verb("discard", desk.producer, spare)
    desk.call_verb("discard", desk.producer, lease)
    assert desk.empty()
    assert desk.ledger.freed == {"discarded": 1}
