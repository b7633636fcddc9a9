import random

import pytest

from omnibus.tensors.ledger import NEVER_DUE, BlockLease
from tests.unit.tensors.ledgers import SIZE, LedgerDesk, read_lease

KEPT = ["retain", "drop", "reclaim_oldest"]
SPARE = ["grant_spare", "use_spare"]


def test_a_block_is_free_once_sealed_and_read_by_all(desk):
    lease = desk.grant(readers=2)
    desk.call_verb("seal", desk.producer, lease)

    for reader in (desk.reader, desk.other):
        assert desk.generation_in_memory(lease) == lease.generation
        desk.call_verb("hold", reader, lease)
        desk.call_verb("release", reader, lease)

    assert desk.empty()
    assert desk.generation_in_memory(lease) == 0
    assert desk.ledger.freed == {"released": 1}
    assert lease.due == NEVER_DUE


def test_an_unsealed_block_outlives_its_readers(desk):
    lease = desk.grant()
    desk.call_verb("hold", desk.reader, lease)
    desk.call_verb("release", desk.reader, lease)

    assert len(desk.ledger) == 1
    desk.call_verb("seal", desk.producer, lease)
    assert desk.empty()


def test_a_block_without_readers_is_free_when_sealed(desk):
    desk.call_verb("seal", desk.producer, desk.grant(readers=0))

    assert desk.empty()


def test_a_reader_may_decline(desk):
    lease = desk.grant()
    desk.call_verb("seal", desk.producer, lease)
    desk.call_verb("release", desk.reader, lease)

    assert desk.empty()


def test_releasing_too_often_takes_nothing_from_a_reader_at_work(desk):
    lease = desk.grant(readers=2)
    desk.call_verb("seal", desk.producer, lease)
    desk.call_verb("hold", desk.reader, lease)

    for _ in range(5):
        desk.call_verb("release", desk.other, lease)

    assert desk.generation_in_memory(lease) == lease.generation
    desk.call_verb("release", desk.reader, lease)
    assert desk.empty()


def test_a_producer_may_read_its_own_block(desk):
    lease = desk.grant()
    desk.call_verb("hold", desk.producer, lease)
    desk.call_verb("release", desk.producer, lease)
    desk.call_verb("seal", desk.producer, lease)

    assert desk.empty()


def test_the_end_frees_at_once_what_nobody_has_open(desk):
    lease = desk.grant(readers=3)
    desk.call_verb("seal", desk.producer, lease)
    other = desk.grant(tag=b"j")

    desk.ledger.end_invocation(desk.reader, b"i")
    desk.ledger.end_invocation(desk.reader, b"i")

    assert list(desk.ledger._leases) == [other.id]
    assert desk.ledger.freed == {"ended": 1}
    assert not desk.lingering


@pytest.mark.parametrize("last", ["end", "seal", "discard", "depart"])
def test_memory_is_kept_from_others_until_a_cancelled_producer_stops_writing(desk, last):
    lease = desk.grant()

    desk.ledger.end_invocation(desk.reader, b"i")
    assert desk.generation_in_memory(lease) == 0
    assert (desk.lingering, desk.ledger.condemned) == ([lease], 1)
    assert desk.space.used > 0

    if last == "end":
        desk.ledger.end_invocation(desk.producer, b"i")
    elif last == "depart":
        desk.ledger.remove_owner(desk.producer)
    else:
        desk.call_verb(last, desk.producer, lease)
    assert desk.empty()
    assert desk.ledger.freed == {"ended": 1}


def test_memory_is_kept_from_others_until_a_cancelled_reader_stops_reading(desk):
    lease = desk.grant()
    desk.call_verb("seal", desk.producer, lease)
    desk.call_verb("hold", desk.reader, lease)

    desk.ledger.expire(lease)
    assert desk.lingering == [lease]

    desk.call_verb("release", desk.reader, lease)
    assert desk.empty()
    assert desk.ledger.freed == {"expired": 1}


def test_force_takes_a_condemned_block_from_all_who_still_have_it(desk):
    lease = desk.grant()
    desk.call_verb("hold", desk.reader, lease)
    desk.ledger.expire(lease)

    desk.ledger.force_free(lease)

    assert desk.empty()
    desk.call_verb("release", desk.reader, lease)
    desk.call_verb("seal", desk.producer, lease)
    assert desk.ledger.stale == 2
    assert desk.ledger.freed == {"forced": 1}


def test_a_producer_that_dies_before_sealing_takes_its_block_along(desk):
    open_lease, sealed_lease = desk.grant(), desk.grant()
    desk.call_verb("seal", desk.producer, sealed_lease)

    desk.ledger.remove_owner(desk.producer)

    assert list(desk.ledger._leases) == [sealed_lease.id]
    assert desk.ledger.freed == {"orphaned": 1}
    assert desk.generation_in_memory(open_lease) == 0


def test_a_reader_that_dies_has_released(desk):
    lease = desk.grant(readers=2)
    desk.call_verb("seal", desk.producer, lease)
    desk.call_verb("hold", desk.reader, lease)
    desk.call_verb("hold", desk.reader, lease)

    desk.ledger.remove_owner(desk.reader)

    assert desk.empty()


def test_only_its_producer_may_discard_a_block(desk):
    lease = desk.grant()
    desk.call_verb("seal", desk.producer, lease)

    desk.call_verb("discard", desk.reader, lease)
    assert len(desk.ledger) == 1

    desk.call_verb("discard", desk.producer, lease)
    assert desk.empty()


def test_only_its_producer_may_seal_a_block(desk):
    lease = desk.grant(readers=0)

    desk.call_verb("seal", desk.reader, lease)

    assert lease.to_row()["sealed"] is False


def test_a_message_with_an_old_generation_changes_nothing(desk):
    lease = desk.grant()
    for verb in ("seal", "hold", "release", "discard"):
        getattr(desk.ledger, verb)(desk.producer, lease.id, lease.generation - 1)

    assert desk.ledger.extend(lease.id, lease.generation - 1, 1.0) is None
    assert desk.ledger.stale == 5
    assert (lease.writing, lease.holders, lease.readers) == (True, {}, 1)


def test_a_condemned_block_cannot_be_extended(desk):
    lease = desk.grant()
    assert desk.ledger.extend(lease.id, lease.generation, 5.0) is lease

    desk.ledger.expire(lease)

    assert desk.ledger.extend(lease.id, lease.generation, 6.0) is None
    assert lease.deadline == 5.0


def test_no_generation_is_given_out_twice(desk):
    generations = set()
    for _ in range(50):
        lease = desk.grant(readers=0)
        generations.add(lease.generation)
        desk.call_verb("seal", desk.producer, lease)

    assert len(generations) == 50
    assert min(generations) > 1000


def test_freed_bytes_are_zero_when_clearing_is_on(desk):
    desk.ledger.clear_on_free = True
    lease = desk.grant(readers=0)
    desk.arena._writable[lease.offset : lease.offset + 4] = b"user"

    desk.call_verb("seal", desk.producer, lease)

    assert b"user" not in desk.arena.path.read_bytes()


def test_a_retained_block_outlives_its_readers_until_its_invocation_ends(desk):
    lease = desk.grant(readers=2)
    desk.call_verb("seal", desk.producer, lease)
    desk.ledger.retain(lease.id, lease.generation)

    read_lease(desk, lease)
    read_lease(desk, lease)  # any number of times
    assert desk.generation_in_memory(lease) == lease.generation
    assert desk.ledger.idle_bytes == lease.nbytes

    desk.ledger.end_invocation(desk.reader, b"i")
    assert desk.empty()
    assert (desk.ledger.freed, desk.ledger.idle_bytes) == ({"ended": 1}, 0)


def test_the_oldest_block_that_is_only_retained_makes_room(desk):
    first, second = desk.grant(readers=2), desk.grant(readers=2)
    for lease in (first, second):
        desk.call_verb("seal", desk.producer, lease)
        desk.ledger.retain(lease.id, lease.generation)
        read_lease(desk, lease)
    desk.call_verb("hold", desk.reader, first)  # retained for another reader

    assert desk.ledger.reclaim_oldest()
    assert not desk.ledger.reclaim_oldest(), "what is read stays"

    assert desk.generation_in_memory(second) == 0
    assert desk.generation_in_memory(first) == first.generation
    desk.call_verb("release", desk.reader, first)
    assert desk.ledger.reclaim_oldest()
    assert desk.empty()
    assert desk.ledger.freed == {"reclaimed": 2}


def test_a_block_that_is_dropped_goes_with_its_last_reader(desk):
    lease = desk.grant(readers=2)
    desk.call_verb("seal", desk.producer, lease)
    desk.ledger.retain(lease.id, lease.generation)
    read_lease(desk, lease)

    desk.ledger.drop(lease.id, lease.generation)

    assert desk.empty()
    assert desk.ledger.freed == {"released": 1}


def test_what_a_dead_producer_had_not_completed_is_not_retained(desk):
    lease = desk.grant()
    desk.ledger.retain(lease.id, lease.generation)

    desk.ledger.remove_owner(desk.producer)

    assert desk.empty()


def call_kept_verb(desk: LedgerDesk, verb: str, lease: BlockLease) -> None:
    getattr(desk.ledger, verb)(*(() if verb == "reclaim_oldest" else (lease.id, lease.generation)))


def use_any_spare(desk: LedgerDesk, chance: random.Random, tag: bytes) -> int:
    """Use a spare, if there is one, and return the number used."""
    spare_leases = list(desk.ledger.spares.values())
    if not spare_leases:
        return 0
    lease = chance.choice(spare_leases)
    desk.ledger.use_spare(lease, tag, chance.randrange(lease.nbytes + 1), chance.randrange(3), 9e9)
    return 1


@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_random_events_leave_nothing(desk, seed):  # noqa: C901, PLR0912 - one verb after the other
    chance = random.Random(seed)
    owners = [desk.producer, desk.reader, desk.other]
    leases: list[BlockLease] = []
    use_count = 0

    for _ in range(4000):
        owner, tag = chance.choice(owners), chance.choice([b"a", b"b", b"c"])
        verb = chance.choice(
            ["grant", "seal", "hold", "release", "discard", "end", "expire", "force_free", "depart", *SPARE, *KEPT]
        )
        alive = [lease for lease in leases[-40:] if lease.id in desk.ledger._leases]
        if verb == "grant":
            lease = desk.ledger.grant(owner, tag, chance.randrange(5000), chance.randrange(3), 9e9)
            leases += [lease] if lease else []
        elif verb == "grant_spare":
            lease = desk.ledger.grant_spare(owner, chance.randrange(5000))
            leases += [lease] if lease else []
        elif verb == "use_spare":
            use_count += use_any_spare(desk, chance, tag)
        elif verb == "end":
            desk.ledger.end_invocation(owner, tag)
        elif leases and verb in KEPT:
            call_kept_verb(desk, verb, chance.choice(leases[-40:]))
        elif verb == "depart" and chance.random() < 0.2:
            desk.ledger.remove_owner(owner)
        elif alive and verb in ("expire", "force_free"):
            lease = chance.choice(alive)
            if (verb == "expire" and not lease.spare) or lease.condemned:
                getattr(desk.ledger, verb)(lease)
        elif leases and verb in ("seal", "hold", "release", "discard"):
            desk.call_verb(verb, owner, chance.choice(leases[-40:]))

    assert len(leases) > 200
    for owner in owners:
        for tag in (b"a", b"b", b"c"):
            desk.ledger.end_invocation(owner, tag)
        for spare in [spare for spare in desk.ledger.spares.values() if spare.owner is owner]:
            desk.call_verb("discard", owner, spare)
    assert use_count > 50
    assert desk.empty()
    assert (desk.ledger.spares, desk.ledger.spare_bytes) == ({}, 0)
    assert (desk.space.holes, desk.space.largest_hole) == (1, SIZE)
    assert desk.ledger.granted <= desk.ledger.freed.total() <= len(leases)
    assert (desk.ledger._idle, desk.ledger.idle_bytes) == ({}, 0)
    assert not desk.ledger._tags
