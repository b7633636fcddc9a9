"""Faults against a running Omnibus: ``python -m tests.chaos --minutes 3 --seed 7 --faults kill,stop``.

``python -m tests.chaos --tenants`` lets one tenant attack another one instead. The exit code is 0 if every promise of
docs/reliability.md held, and 1 if one was broken. The same seed draws the same requests and the same faults.
"""

import argparse
import random
import sys
from pathlib import Path

from tests.chaos.faults import WEIGHTS
from tests.chaos.judge_tenants import judge_tenants
from tests.chaos.report import format_report
from tests.chaos.run import Options, run_chaos
from tests.chaos.stack import with_own_disks
from tests.chaos.tenants import ATTACKS, run_tenants

VERBS = sorted({verb for _, verb in WEIGHTS})
ROLES = sorted({role for role, _ in WEIGHTS})


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--tenants"]:
        return main_tenants(arguments[1:])
    options, place = parse_arguments(arguments)
    if f"--seed={options.seed}" not in arguments:
        arguments = [*arguments, f"--seed={options.seed}"]
    if (status := with_own_disks(arguments)) is not None:
        return status
    print(f"seed {options.seed}", flush=True)
    result = run_chaos(options)
    text = format_report(options, result)
    print(text)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        (place / "report.md").write_text(text)
        (place / "omnibus.log").write_text(result.log)
        (place / "violations.txt").write_text("\n".join(f"{each.promise}: {each.detail}" for each in result.violations))
        (place / "faults.txt").write_text("\n".join(map(str, result.record.events)))
    return 1 if result.violations else 0


def main_tenants(arguments: list[str]) -> int:
    """Let one tenant attack another one; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos --tenants", description=run_tenants.__doc__)
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="some of %(default)s")
    parser.add_argument("--late", type=float, default=0.0, help="seconds that a busy machine may be late")
    options = parser.parse_args(arguments)
    record = run_tenants(sorted(_parse_words(parser, options.attacks, list(ATTACKS))), 60 * options.minutes)
    violations = judge_tenants(record, options.late)
    for name, codes in record.codes.items():
        print(f"{name}: {dict(codes)}")
    slowest = max((each.seconds for each in record.others), default=0.0)
    print(f"the other tenant: {len(record.others)} requests, the slowest {slowest:.1f} s")
    growth = (record.store_peak - record.store_before) >> 20, (record.gateway_peak - record.gateway_before) >> 20
    print(f"store +{growth[0]} MiB, gateway +{growth[1]} MiB; stopped {record.stop_seconds:.1f} s after revocation")
    for each in violations:
        print(f"BROKEN {each.promise}: {each.detail}")
    return 1 if violations else 0


def parse_arguments(arguments: list[str]) -> tuple[Options, Path | None]:
    """Parse a command line.

    Returns the options, and the directory for report and log.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", default=",".join(VERBS), help="some of %(default)s")
    parser.add_argument("--roles", default="", help=f"some of {', '.join(ROLES)}; empty: all")
    parser.add_argument("--clients", type=int, default=4, help="that send good requests one after another")
    parser.add_argument("--no-attacks", action="store_true", help="no slow clients, hostile files or media servers")
    parser.add_argument("--overload", type=float, default=0.0, help="no faults, but so many times the capacity")
    parser.add_argument("--hostile", type=int, default=0, help="no faults, but so many hostile inputs beside good ones")
    parser.add_argument("--late", type=float, default=2.0, help="seconds that a request may outlast its deadline")
    parser.add_argument("--into", type=Path, default=None, help="directory for the report, the log and all violations")
    parser.add_argument("--nodes", type=int, default=1, help="sidecars, on which executors and gateways take turns")
    values = parser.parse_args(arguments)
    verbs, roles = _parse_words(parser, values.faults, VERBS), _parse_words(parser, values.roles, ROLES)
    seed = random.randrange(2**31) if values.seed is None else values.seed
    options = Options(
        seed,
        values.minutes,
        verbs,
        roles,
        values.clients,
        not values.no_attacks,
        values.overload,
        values.hostile,
        values.late,
        values.nodes,
    )
    return options, values.into


def _parse_words(parser: argparse.ArgumentParser, text: str, choices: list[str]) -> frozenset[str]:
    words = frozenset(filter(None, (word.strip() for word in text.split(","))))
    if unknown := words - set(choices):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(choices)}")
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
