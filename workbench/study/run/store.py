"""The store of results: one committed row for every finished unit, and claims on the units that processes measure.

A SQLite file with a write-ahead log, on a local disk; JSON lines for archives and for other machines.
"""

import json
import os
import re
import secrets
import socket
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.errors import DataError, check_number, check_path, shown
from workbench.files.reading import reading
from workbench.files.writing import make_folder, write_atomically
from workbench.study.plan.plan import Row, Unit

__all__ = ["LEASE_SECONDS", "Store", "read_rows", "write_rows"]

# A claim that was not renewed for this long is free again: its process or its machine is gone.
LEASE_SECONDS = 120.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY,
    settings TEXT NOT NULL,
    result TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
    key TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    expires REAL NOT NULL
) WITHOUT ROWID;
"""

_DELETE_FINISHED_CLAIMS = "DELETE FROM claims WHERE key IN (SELECT key FROM results)"

# Inserts nothing if the unit is finished or claimed by another running process.
_CLAIM = """
INSERT OR REPLACE INTO claims
SELECT * FROM (SELECT ? AS key, ? AS owner, ? AS host, ? AS pid, ? AS expires) AS new
WHERE NOT EXISTS (SELECT 1 FROM results WHERE key = new.key)
AND NOT EXISTS (
    SELECT 1 FROM claims WHERE key = new.key AND owner != new.owner AND expires >= ? AND is_running(host, pid)
)
"""

# What to do about an error of the database, by words of its message.
_ADVICE = {
    "full|disk I/O": " Free space on its disk, or use another file; finished units are kept.",
    "readonly|unable to open": " Use a file in a writable folder.",
    "not a database|malformed": " Use the store of a study, or a new file.",
}

# A checksum of the settings' names, stored as SQLite's user_version: when the names change, so do the keys.
_NAMES = [field.name for kind in (Unit, ClientConfig, DefenceConfig, AttackConfig) for field in fields(kind)]
_KNOWN_SETTINGS = zlib.crc32(" ".join(_NAMES).encode()) & (2**31 - 1)


class Store(AbstractContextManager["Store"]):
    """The results of a study in a file that several processes may share.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(f"{folder}/study.sqlite") as store:
    ...     len(store)
    0
    """

    def __init__(self, path: str | os.PathLike[str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        """Open the file, or create it.

        Args:
            path: of the file.
            lease_seconds: how long a claim holds without renewal; this process renews its claims as long as it runs.
        """
        self.path = check_path("store", path, "the path of a file")
        self.lease_seconds = check_number("lease_seconds", lease_seconds, above=0)
        self._owner = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._renewal = threading.Thread(target=self._renew_claims, name="study store", daemon=True)
        make_folder(self.path.parent, "the store's folder")
        with self._translated_errors():
            # Guarded by our lock, because a second thread renews the claims.
            self._connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            with self._translated_errors():
                self._connection.create_function("is_running", 2, _is_running)
                self._connection.execute("PRAGMA journal_mode = WAL")
                # A unit may take an hour to measure, so a finished one must survive a power failure.
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.executescript(_SCHEMA)
            with self._writing():
                # Write now: a file that is not writable must be reported before the first unit is measured.
                self._connection.execute(_DELETE_FINISHED_CLAIMS)
                self._update_keys()
        except DataError:
            self._connection.close()
            raise
        self._renewal.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._query("SELECT count(*) FROM results")[0][0])

    def close(self) -> None:
        """Release unfinished claims and close the file."""
        self._closed.set()
        self._renewal.join()
        # If this fails, for instance in a store that is closed already, the claims expire.
        with suppress(DataError):
            self._query("DELETE FROM claims WHERE owner = ?", self._owner)
        self._connection.close()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn errors of the database into a DataError of one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            advice = next((advice for words, advice in _ADVICE.items() if re.search(words, str(error))), "")
            raise DataError(f"store = '{self.path}' cannot be used: {error}.{advice}") from None

    def _query(self, sql: str, *values: object) -> list[Any]:
        """The rows of one statement, which is a transaction by itself."""
        with self._lock, self._translated_errors():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: the connection commits it at the end, and rolls it back after an error."""
        with self._lock, self._translated_errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield

    def _update_keys(self) -> None:
        """Give rows of an earlier version, which had fewer settings, their present keys."""
        if self._connection.execute("PRAGMA user_version").fetchone()[0] == _KNOWN_SETTINGS:
            return
        for key, settings in self._connection.execute("SELECT key, settings FROM results").fetchall():
            # A row of a later version is not readable here, and stays as it is.
            with suppress(DataError):
                unit = Unit.from_settings(json.loads(settings))
                values = (unit.key, _text(unit.settings), key)
                self._connection.execute("UPDATE OR IGNORE results SET key = ?, settings = ? WHERE key = ?", values)
                # What the update ignored is a second result of one unit, and the first one stays.
                self._connection.execute("DELETE FROM results WHERE key = ? AND key != ?", (key, unit.key))
        self._connection.execute(f"PRAGMA user_version = {_KNOWN_SETTINGS}")

    def rows(self, units: Iterable[Unit]) -> dict[str, Row]:
        """The rows of the finished units among these, by key."""
        keys = json.dumps([unit.key for unit in units])
        sql = "SELECT key, settings, result FROM results WHERE key IN (SELECT value FROM json_each(?))"
        return {
            key: {"key": key, "settings": json.loads(settings), **json.loads(result)}
            for key, settings, result in self._query(sql, keys)
        }

    def finish(self, unit: Unit, result: Row) -> bool:
        """Store a result; whether it is the first one of this unit."""
        return self.add_rows([{**result, "settings": unit.settings}]) == 1

    def add_rows(self, rows: Iterable[Row]) -> int:
        """Store rows, such as those of `read_rows`; how many were new."""
        pairs = [(Unit.from_settings(row["settings"]), row) for row in rows]
        values = [
            (unit.key, _text(unit.settings), _text({name: row[name] for name in row.keys() - {"key", "settings"}}))
            for unit, row in pairs
        ]
        with self._writing():
            new = self._connection.executemany("INSERT OR IGNORE INTO results VALUES (?, ?, ?)", values).rowcount
            self._connection.execute(_DELETE_FINISHED_CLAIMS)
        return new

    def kept(self, key: str) -> Row | None:
        """What `keep` stored under a key; None if there is nothing."""
        found = self._query("SELECT result FROM results WHERE key = ?", key)
        return json.loads(found[0][0]) if found else None

    def keep(self, key: str, settings: Row, result: Row) -> None:
        """Store a result that is not that of a unit, such as a part of an audit; the first one under a key stays.

        Args:
            key: a digest of the settings.
            settings: everything that decides the result.
            result: as plain JSON values.
        """
        self._query("INSERT OR IGNORE INTO results VALUES (?, ?, ?)", key, _text(settings), _text(result))

    def claim(self, unit: Unit) -> bool:
        """Claim a unit for this process; False if it is finished or claimed by another running process."""
        now = time.time()
        claim = (unit.key, self._owner, socket.gethostname(), os.getpid(), now + self.lease_seconds)
        with self._writing():
            return self._connection.execute(_CLAIM, (*claim, now)).rowcount == 1

    def release(self, unit: Unit) -> None:
        """Release the claim on an unfinished unit."""
        self._query("DELETE FROM claims WHERE key = ? AND owner = ?", unit.key, self._owner)

    def _renew_claims(self) -> None:
        while not self._closed.wait(self.lease_seconds / 4):
            # The next renewal may succeed in time, and `finish` reports an error that persists.
            with suppress(DataError):
                expires = time.time() + self.lease_seconds
                self._query("UPDATE claims SET expires = ? WHERE owner = ?", expires, self._owner)


def _is_running(host: str, pid: int) -> bool:
    """Whether a process runs; for one of another machine, only the expiry of its claim can tell."""
    if host != socket.gethostname():
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        # A process that this user may not signal runs; one that does not exist has ended.
        return isinstance(error, PermissionError)
    return True


def _text(values: Row) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a file of JSON lines."""
    file = Path(path)
    rows = []
    with reading(file, "JSON lines that a study exported"):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or not isinstance(row.get("settings"), dict):
                raise DataError(f"line {number}: {shown(line)} is not a result of a study.")
            rows.append(row)
    return rows


def write_rows(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Write rows as JSON lines; the file is replaced atomically."""
    write_atomically(path, "".join(f"{_text(row)}\n" for row in rows).encode())
