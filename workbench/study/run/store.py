"""Where results are kept: one committed row for every finished unit, and who is at which of the others.

A SQLite file with a write-ahead log, on a disk of this machine; JSON lines for keeping and passing on.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.errors import DataError, check_number, shown
from workbench.files.writing import make_folder, write_atomically
from workbench.study.plan.units import Unit

__all__ = ["LEASE_SECONDS", "Row", "Store", "read_rows", "write_rows"]

# One finished unit: its key, its settings and what was measured, as plain JSON values.
Row = dict[str, Any]

# A claim that nobody renewed for so long is free again: its process is gone, or its machine.
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

# Which settings there are, as SQLite's whole number for an application's own use: with others, keys are others.
_NAMES = [field.name for kind in (Unit, ClientConfig, DefenceConfig, AttackConfig) for field in fields(kind)]
_KNOWN_SETTINGS = zlib.crc32(" ".join(_NAMES).encode()) & (2**31 - 1)


class Store:
    """The results of a study in a file that several processes may share.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(f"{folder}/study.sqlite") as store:
    ...     len(store)
    0
    """

    def __init__(self, path: str | os.PathLike[str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        """Open the file, and make it where there is none.

        Args:
            path: of the file.
            lease_seconds: how long a claim holds without being renewed; it is renewed as long as this process lives.
        """
        try:
            self.path = Path(path)
        except TypeError:
            raise DataError(f"store = {shown(path)} must be the path of a file.") from None
        self.lease_seconds = check_number("lease_seconds", lease_seconds, above=0)
        self._owner = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None
        make_folder(self.path.parent, "the store's folder")
        with self._telling():
            # Guarded by a lock of ours, because the heartbeat has a thread of its own.
            self._connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            with self._telling():
                self._connection.execute("PRAGMA journal_mode = WAL")
                # A finished unit may have taken an hour: it must survive a power cut, too.
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.executescript(_SCHEMA)
            with self._writing():
                # Now, not after the first unit: a file that cannot be written would lose it.
                self._connection.execute("DELETE FROM claims WHERE key IN (SELECT key FROM results)")
                self._renew_keys()
        except DataError:
            self._connection.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._lock, self._telling():
            return int(self._connection.execute("SELECT count(*) FROM results").fetchone()[0])

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def close(self) -> None:
        """Give back what was claimed and not finished."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._heart is not None:
            self._heart.join()
        try:
            with self._writing():
                self._connection.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))
        except DataError:
            # Claims of a process that has ended are free anyway.
            pass
        self._connection.close()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Errors of the database as one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            raise DataError(f"store = '{self.path}' cannot be used: {error}.{_advice(str(error))}") from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: all of it or nothing."""
        with self._lock, self._telling():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _renew_keys(self) -> None:
        """Rows of an earlier version, which had fewer settings, get the keys that they have now."""
        if self._connection.execute("PRAGMA user_version").fetchone()[0] == _KNOWN_SETTINGS:
            return
        for key, settings in self._connection.execute("SELECT key, settings FROM results").fetchall():
            try:
                unit = Unit.from_settings(json.loads(settings))
            except DataError:
                # Of a later version: not for us to read, nor to lose.
                continue
            if unit.key != key:
                values = (unit.key, _text(unit.settings), key)
                self._connection.execute(
                    "INSERT OR IGNORE INTO results SELECT ?, ?, result FROM results WHERE key = ?", values
                )
                self._connection.execute("DELETE FROM results WHERE key = ?", (key,))
        self._connection.execute(f"PRAGMA user_version = {_KNOWN_SETTINGS}")

    # Results

    def rows(self, units: Iterable[Unit]) -> dict[str, Row]:
        """The finished ones among the units, by key."""
        found: dict[str, Row] = {}
        with self._lock, self._telling():
            for key in {unit.key for unit in units}:
                row = self._connection.execute("SELECT settings, result FROM results WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    found[key] = {"key": key, "settings": json.loads(row[0]), **json.loads(row[1])}
        return found

    def finish(self, unit: Unit, result: Row) -> bool:
        """Keep a result for good; whether it is the first one of this unit."""
        return self._insert([(unit, result)]) == 1

    def add_rows(self, rows: Iterable[Row]) -> int:
        """Take over rows from elsewhere, such as `read_rows` gives; how many were new."""
        pairs = []
        for row in rows:
            result = {name: value for name, value in row.items() if name not in ("key", "settings")}
            pairs.append((Unit.from_settings(row["settings"]), result))
        return self._insert(pairs)

    def _insert(self, pairs: Sequence[tuple[Unit, Row]]) -> int:
        new = 0
        with self._writing():
            for unit, result in pairs:
                values = (unit.key, _text(unit.settings), _text(result))
                new += self._connection.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?)", values).rowcount
                self._connection.execute("DELETE FROM claims WHERE key = ?", (unit.key,))
        return new

    # Claims

    def claim(self, unit: Unit) -> bool:
        """Whether the unit is now this process's to do: it is neither finished nor another living process's."""
        with self._writing():
            if self._connection.execute("SELECT 1 FROM results WHERE key = ?", (unit.key,)).fetchone():
                return False
            claim = self._connection.execute(
                "SELECT owner, host, pid, expires FROM claims WHERE key = ?", (unit.key,)
            ).fetchone()
            if claim is not None and claim[0] != self._owner and _is_alive(*claim[1:]):
                return False
            self._connection.execute(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)",
                (unit.key, self._owner, socket.gethostname(), os.getpid(), time.time() + self.lease_seconds),
            )
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="study store", daemon=True)
            self._heart.start()
        return True

    def release(self, unit: Unit) -> None:
        """Give a claimed unit back unfinished."""
        with self._writing():
            self._connection.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (unit.key, self._owner))

    def _beat(self) -> None:
        while not self._closed.wait(self.lease_seconds / 4):
            # A beat that fails is not the end: the next one may come in time, and `finish` tells what is wrong.
            try:
                with self._writing():
                    expires = time.time() + self.lease_seconds
                    self._connection.execute("UPDATE claims SET expires = ? WHERE owner = ?", (expires, self._owner))
            except DataError:
                continue


def _is_alive(host: str, pid: int, expires: float) -> bool:
    if time.time() > expires:
        return False
    if host != socket.gethostname():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _advice(reason: str) -> str:
    if "full" in reason or "disk I/O" in reason:
        return " Make room on its disk, or name another file; what was finished before is kept."
    if "readonly" in reason or "unable to open" in reason:
        return " Name a file in a folder that can be written."
    if "not a database" in reason or "malformed" in reason:
        return " Name a store of a study, or a new file."
    return ""


def _text(values: Row) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a file of JSON lines."""
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("settings"), dict):
            raise DataError(f"{file}, line {number}: {shown(line)} is not a result of a study.")
        rows.append(row)
    return rows


def write_rows(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Write rows as JSON lines, the whole file at once."""
    write_atomically(path, "".join(f"{_text(row)}\n" for row in rows).encode())
