"""Coverage figures are summed by room."""

from tests import covered


def make_report(**files: tuple[int, int, int, int]) -> dict:
    names = ("num_statements", "covered_lines", "num_branches", "covered_branches")
    summaries = {path: {"summary": dict(zip(names, counts, strict=True))} for path, counts in files.items()}
    return {"files": summaries}


def test_files_of_a_room_are_summed_and_all_rooms_come_last():
    files = {"services/b/x.py": (10, 9, 4, 2), "services/a/x.py": (1, 0, 0, 0), "services/b/c/y.py": (30, 21, 0, 0)}

    rooms = covered.by_room(make_report(**files, **{"tests/z.py": (5, 5, 5, 5)}))

    assert list(rooms) == ["services/a", "services/b", "all"]
    assert covered.format_row(rooms["services/b"]) == "75.0 % of 40 | 50.0 % of 4"
    assert covered.format_row(rooms["services/a"]) == "0.0 % of 1 | – of 0"
    assert covered.format_row(rooms["all"]).startswith("73.2 % of 41")
