"""The faults of ``python -m tests.mutations`` can be applied. Their own tests run first."""

from tests.mutations import MUTATIONS, ROOT, Mutation, nearest_tests


def test_every_fault_can_be_made():
    counts = {each: (ROOT / each.path).read_text().count(each.before) for each in MUTATIONS}

    assert [each.path for each, count in counts.items() if count != 1] == []
    assert [each.path for each in MUTATIONS if not list((ROOT / each.tests).rglob("test_*.py"))] == []


def test_the_nearest_tests_import_the_module_or_are_named_as_it(tmp_path):
    room = tmp_path / "tests/unit/bus"
    room.mkdir(parents=True)
    texts = {
        "test_keys.py": "from omnibus.api_key import generate_key\n",
        "test_from.py": "import os\nfrom omnibus import api_key, errors\n",
        "test_api_key.py": "import os\n",
        "test_words.py": '"""Of omnibus.api_key."""\n',
        "test_others.py": "from omnibus.api_keys import generate_key\n",
    }
    for name, text in texts.items():
        (room / name).write_text(text)

    paths = nearest_tests(tmp_path, Mutation("shared/omnibus/api_key.py", "a", "b", "tests/unit/bus"))

    assert paths == [f"tests/unit/bus/test_{name}.py" for name in ("api_key", "from", "keys")]
