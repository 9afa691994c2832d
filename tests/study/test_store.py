"""What the store promises: nothing finished is lost, nothing is claimed twice, and errors are one sentence."""

import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench.errors import DataError
from workbench.study.run.store import Store, read_rows, write_rows

RESULT = {"outcome": "finished", "psnr": [1.0], "seconds": 0.1}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.sqlite"


def claims(path):
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT key, host, pid, expires FROM claims").fetchall()
    finally:
        connection.close()


def change_claims(path, assignment, *values):
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE claims SET {assignment}", values)
    connection.close()


def dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_finished_unit_is_there_after_opening_again(path, make_unit):
    unit = make_unit()
    with Store(path) as store:
        assert store.finish(unit, RESULT)
        assert not store.finish(unit, {**RESULT, "psnr": [2.0]}), "the first result stays"
    with Store(path) as store:
        assert store.rows([unit, make_unit(1)]) == {unit.key: {"key": unit.key, "settings": unit.settings, **RESULT}}
        assert len(store) == 1


def test_nobody_gets_a_unit_that_another_living_process_measures(path, make_unit):
    with Store(path) as first, Store(path) as second:
        assert first.claim(make_unit())
        assert not second.claim(make_unit())
        assert second.claim(make_unit(1)), "another unit is free"
        first.release(make_unit())
        assert second.claim(make_unit())
        second.finish(make_unit(), RESULT)
        assert not first.claim(make_unit()), "finished units are not done again"


def test_closing_gives_claims_back(path, make_unit):
    with Store(path) as first:
        assert first.claim(make_unit())
    assert claims(path) == []


def test_the_claim_of_a_dead_process_is_free_at_once(path, make_unit):
    with Store(path) as first, Store(path) as second:
        assert first.claim(make_unit())
        change_claims(path, "pid = ?", dead_process())
        assert second.claim(make_unit())


def test_the_claim_of_another_machine_holds_until_its_lease_is_over(path, make_unit):
    with Store(path) as first, Store(path) as second:
        assert first.claim(make_unit())
        change_claims(path, "host = 'elsewhere', pid = ?", dead_process())
        assert not second.claim(make_unit())
        change_claims(path, "expires = ?", time.time() - 1)
        assert second.claim(make_unit())


def test_a_claim_is_renewed_as_long_as_its_process_lives(path, make_unit):
    with Store(path, lease_seconds=0.4) as first, Store(path) as second:
        assert first.claim(make_unit())
        change_claims(path, "host = 'elsewhere'")
        time.sleep(1.0)
        assert not second.claim(make_unit()), "nobody renewed the claim"


def test_rows_of_an_earlier_version_are_found_and_those_of_a_later_one_are_kept(path, make_unit):
    unit = make_unit()
    with Store(path) as store:
        store.finish(unit, RESULT)
    earlier, later = json.loads(json.dumps(unit.settings)), {**unit.settings, "of_tomorrow": 1}
    del earlier["attack"]["match"], earlier["client"]["same_batches"]
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE results SET key = 'old', settings = ?", (json.dumps(earlier),))
        connection.execute("INSERT INTO results VALUES ('new', ?, '{}')", (json.dumps(later),))
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    for _ in range(2):
        with Store(path) as store:
            assert store.rows([unit]) == {unit.key: {"key": unit.key, "settings": unit.settings, **RESULT}}
            assert len(store) == 2, "the old key is gone, and the row that is not understood is still there"


def test_rows_travel_as_json_lines(path, tmp_path, make_unit):
    with Store(path) as store:
        store.finish(make_unit(), RESULT)
        rows = store.rows([make_unit()])
    write_rows(tmp_path / "rows.jsonl", rows.values())
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 1
    with Store(tmp_path / "other.sqlite") as other:
        assert other.add_rows(read_rows(tmp_path / "rows.jsonl")) == 1
        assert other.add_rows(read_rows(tmp_path / "rows.jsonl")) == 0
        assert other.rows([make_unit()]) == rows


@pytest.mark.parametrize("line", ["{", "3", '{"settings": 3}', "[]", ""])
def test_other_lines_are_refused_with_their_number(tmp_path, line):
    (tmp_path / "rows.jsonl").write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"rows\.jsonl: line 1: .* is not a result of a study"):
        read_rows(tmp_path / "rows.jsonl")


def test_a_full_disk_is_reported_and_loses_nothing(path, make_unit):
    with Store(path) as store:
        store.finish(make_unit(0), RESULT)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        wal = Path(f"{path}-wal")
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size, hard))
        try:
            with pytest.raises(DataError, match=r"study\.sqlite' cannot be used: .*Free space on its disk"):
                store.finish(make_unit(1), {**RESULT, "psnr": [0.125] * 10_000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.finish(make_unit(2), RESULT), "with room again, it goes on"
    with Store(path) as store:
        assert set(store.rows([make_unit(0), make_unit(1), make_unit(2)])) == {make_unit(0).key, make_unit(2).key}


def test_a_database_that_may_not_grow_is_reported(path, make_unit):
    with Store(path) as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DataError, match=r"disk is full.*Free space"):
            store.finish(make_unit(), {**RESULT, "psnr": [0.125] * 10_000})


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that not even root can write to")
def test_a_read_only_place_is_reported_before_anything_is_done():
    with pytest.raises(DataError, match=r"cannot be used: unable to open .*Use a file in a writable folder"):
        Store("/proc/study.sqlite")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_is_reported_before_anything_is_done(path):
    Store(path).close()
    path.chmod(0o444)
    with pytest.raises(DataError, match="cannot be used: attempt to write a readonly database"):
        Store(path)


def test_what_is_no_store_is_reported_and_left_alone(path):
    path.write_bytes(b"something else" * 100)
    with pytest.raises(DataError, match=r"not a database.*Use the store of a study, or a new file"):
        Store(path)
    assert path.read_bytes() == b"something else" * 100


@pytest.mark.parametrize(("store", "message"), [(3, "must be the path of a file"), ("", "cannot be used")])
def test_what_is_no_path_is_reported(store, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        Store(store)


def test_other_results_than_units_are_kept_beside_them(path, make_unit):
    with Store(path) as store:
        assert store.kept("a") is None
        store.keep("a", {"part": "attack"}, RESULT)
        store.keep("a", {"part": "attack"}, {"outcome": "another"})
        assert store.kept("a") == RESULT, "the first result under a key stays"
        store.finish(make_unit(), RESULT)
        assert list(store.rows([make_unit()])) == [make_unit().key]
    with Store(path) as store:
        assert store.kept("a") == RESULT
        # As a store of an earlier version, whose keys are computed again when it is opened.
        store._query("PRAGMA user_version = 1")
    with Store(path) as store:
        assert store.kept("a") == RESULT
        assert len(store) == 2
