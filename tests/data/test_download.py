"""Downloads over real HTTP: a file is complete and verified, or absent."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import workbench
from workbench.errors import DataError
from workbench.files.cache import cache_folder, fetch

CONTENT = bytes(range(256)) * 4096
MD5 = hashlib.md5(CONTENT).hexdigest()

FETCH = """
import sys
from pathlib import Path
from workbench.files.cache import fetch
url, md5, folder = sys.argv[1:]
print(fetch(url, md5, Path(folder)))
"""


@pytest.fixture
def url(server):
    server.files["/file.bin"] = CONTENT
    return f"{server.url}/file.bin"


def start_fetch(url, folder):
    """The same download in another process."""
    root = Path(next(iter(workbench.__path__))).parent
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, url, MD5, str(folder)],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def assert_empty(folder):
    left = [file.name for file in folder.iterdir()] if folder.exists() else []
    assert left == [], f"a failed download left {left} behind"


def test_a_download_is_whole_and_happens_once(tmp_path, server, url, capfd):
    folder = tmp_path / "a new folder"
    for _ in range(2):
        path = fetch(url, MD5, folder)
        assert path == folder / "file.bin"
        assert path.read_bytes() == CONTENT
    assert server.num_requests == 1, "a file that is there was downloaded again"
    assert [file.name for file in folder.iterdir()] == ["file.bin"]
    assert "100%" in capfd.readouterr().err, "no progress bar was shown"


def test_a_wrong_checksum_is_refused(tmp_path, url):
    with pytest.raises(DataError, match=r"file\.bin was downloaded but its MD5 checksum is not 00000"):
        fetch(url, "0" * 32, tmp_path)
    assert_empty(tmp_path)


def test_a_cut_connection_is_refused(tmp_path, server, url):
    server.cut.add("/file.bin")
    with pytest.raises(DataError, match=r"file\.bin could not be downloaded: the connection failed"):
        fetch(url, MD5, tmp_path)
    assert_empty(tmp_path)
    server.cut.clear()
    assert fetch(url, MD5, tmp_path).read_bytes() == CONTENT, "a second try must succeed"


def test_no_such_file_and_no_server_are_told_apart(tmp_path, server):
    with pytest.raises(DataError, match=r"the connection failed \(404\); try again, or give the path"):
        fetch(f"{server.url}/missing.bin", MD5, tmp_path)
    with pytest.raises(DataError, match=r"the connection failed \(ConnectionError\)"):
        fetch("http://127.0.0.1:9/file.bin", MD5, tmp_path)
    assert_empty(tmp_path)


@pytest.fixture
def full_folder(tmp_path, monkeypatch):
    """A folder on a disk too small for the file: a real one where this process may mount it."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    if not is_mounted:
        monkeypatch.setattr("pooch.downloaders.open", open_on_a_full_disk, raising=False)
    yield folder
    if is_mounted:
        subprocess.run(["umount", str(folder)], check=True)


def open_on_a_full_disk(name, mode):
    file = Path(name).open(mode)  # noqa: SIM115

    class Full:
        def write(self, content):
            if file.tell() > 2**17:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return file.write(content)

        def __getattr__(self, attribute):
            return getattr(file, attribute)

    return Full()


def test_a_full_disk_is_told_and_left_clean(full_folder, url):
    with pytest.raises(DataError, match=r"file\.bin could not be saved in .*small: the disk is full"):
        fetch(url, MD5, full_folder)
    assert_empty(full_folder)


def test_a_place_that_is_no_folder_gets_one_clear_sentence(tmp_path, url):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="could not be saved in"):
        fetch(url, MD5, tmp_path / "file" / "folder")


def test_two_processes_at_the_same_time_both_get_the_whole_file(tmp_path, server, url):
    # Neither gets its second half before the other has begun.
    server.together = threading.Barrier(2)
    processes = [start_fetch(url, tmp_path) for _ in range(2)]
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert answers == [str(tmp_path / "file.bin")] * 2
    assert server.num_requests == 2, "the two were not at work at the same time"
    assert [file.name for file in tmp_path.iterdir()] == ["file.bin"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_what_a_killed_process_leaves_is_never_taken_for_the_file(tmp_path, server, url):
    server.go_on.clear()
    process = start_fetch(url, tmp_path)
    assert server.half_sent.wait(timeout=60), "the download did not begin"
    process.kill()
    process.communicate()
    server.go_on.set()
    assert not (tmp_path / "file.bin").exists()
    assert fetch(url, MD5, tmp_path).read_bytes() == CONTENT


def test_a_partial_file_under_the_right_name_is_replaced(tmp_path, url):
    (tmp_path / "file.bin").write_bytes(CONTENT[:1000])
    assert fetch(url, MD5, tmp_path).read_bytes() == CONTENT


def test_the_cache_can_be_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("WORKBENCH_CACHE")
    assert cache_folder().name == "fedavg-leakage-workbench"
