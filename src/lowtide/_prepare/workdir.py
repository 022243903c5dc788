"""The folder ``.prepare`` in the output: the work of a run, from which the next run resumes.

::

    .prepare/plan.json    everything that determines the bytes; another plan raises
             lock         held by the run; contains the boot id of the machine
             tokenizer.json
             tokenizer.seal  the digest of the tokenizer, for this plan
             tasks/       files of tasks that are done, until they are merged into a shard
             state.json   what is merged and on disk
             out/         shards, as they will be in the output folder

Nothing of a run is visible outside of it before everything is complete. Nothing in it is trusted: records are
sealed (``sealed.py``) and contain the checksums of all other files. A file that does not match is made again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from lowtide import errors
from lowtide._io import atomic, store, system
from lowtide._prepare import sealed
from lowtide._prepare.jobs import Record
from lowtide._prepare.published import Uploads
from lowtide._printable import changes, listed
from lowtide._tokens.formats import own
from lowtide._tokens.formats.tokens import UNFINISHED
from lowtide.errors import ArgumentError, LowtideError, StateError, WriteError

_CLASH = re.compile(r"(train|val)(-\d+)?\.(bin|ends)|corpus\.json|tokenizer\.json|meta\.pkl")
_TASK = re.compile(r"(\d{8,})\.(json|(train|val)\.(bin|ends))")
_BLOCK = 2**20  # bytes of a checksum at once
_SHOWN = 4  # entries of a list that a message shows
_KEPT = ("lock", "stdin", "train.jsonl", "val.jsonl")  # a run with another plan has just written them
_PLAN = ("plan.json", "tokenizer.seal")  # without them the content of the folder is not work
_BOOT = "/proc/sys/kernel/random/boot_id"

Plan = Mapping[str, Any]


class Workdir:
    """One output folder and the work in it, locked by this process from ``__init__`` to ``close``."""

    def __init__(self, out: str, uploads: Uploads | None = None) -> None:
        """``uploads`` are the files that were moved to a bucket, if the corpus is for one."""
        self.out, self.uploads = os.path.abspath(out), uploads
        self.path = os.path.join(self.out, UNFINISHED)
        self.tasks = os.path.join(self.path, "tasks")
        self.shards = os.path.join(self.path, "out")
        self.tokenizer = os.path.join(self.path, "tokenizer.json")
        self.damaged: list[str] = []  # files that do not match
        self.key = ""  # seals records; set once the tokenizer exists
        self._plan_key = ""
        if os.path.exists(self.out) and not os.path.isdir(self.out):
            raise ArgumentError(f"{self.out}: is a file, expected a folder; pass another path")
        with errors.write_errors(self.path):
            os.makedirs(self.path, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self._fd = os.open(self._in("lock"), flags, 0o666)
        if not atomic.lock(self._fd):
            os.close(self._fd)
            raise WriteError(
                errno.EBUSY,
                f"another lowtide prepare is running here (it has locked {self.path}/lock); wait for it, or "
                "pass another folder",
                self.out,
            )

    def close(self) -> None:
        """Release the folder, and remove it if it contains no work."""
        planned = any(os.path.exists(self._in(name)) for name in _PLAN)
        unused = not planned or not self._has_work()
        if unused and os.name != "nt":  # while it is locked, except where an open file cannot be removed
            self._remove_all()
        os.close(self._fd)
        if unused and os.name == "nt":
            self._remove_all()

    def _remove_all(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.rmdir(self.out)

    def start(self, plan: Plan, *, overwrite: bool) -> None:
        """Prepare the folder for a plan; the work of an earlier run stays if its plan was the same."""
        self._plan_key = sealed.digest_of(plan)
        self._remove_irregular()
        earlier = sealed.read(self._in("plan.json"))
        resumes = bool(earlier == json.loads(json.dumps(plan)))
        if earlier is None and self._has_work():
            self.damaged.append("plan.json")
            resumes = self._is_of_plan()
        if not resumes:
            if earlier is not None and self._has_work() and not overwrite:
                raise StateError(
                    f"{self.out}: contains an unfinished prepare with other sources or settings "
                    f"({_differences(earlier, plan)}); run it as before to resume it, or pass overwrite "
                    "(--overwrite) to start again"
                )
            self._refuse_clashes(overwrite)
            self._clear()
        for folder in (self.tasks, self.shards):
            os.makedirs(folder, exist_ok=True)
        self._forget_unsynced()
        if not resumes or earlier is None:
            sealed.write(self._in("plan.json"), plan)

    def _in(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _remove_irregular(self) -> None:
        """Remove what no run writes, such as a link or a pipe in the place of a file."""
        for folder in (self.path, self.tasks, self.shards):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                path = os.path.join(folder, name)
                mode = os.lstat(path).st_mode
                if not (stat.S_ISDIR if path in (self.tasks, self.shards) else stat.S_ISREG)(mode):
                    self.damaged.append(os.path.relpath(path, self.path))
                    _remove(path)

    def _has_work(self) -> bool:
        """Whether there is work to resume."""
        return os.path.exists(self._in("state.json")) or (
            os.path.isdir(self.tasks) and bool(os.listdir(self.tasks))
        )

    def has_tokenizer(self) -> bool:
        """Whether the tokenizer that an earlier run created for this plan is there and undamaged."""
        seal = self._read_seal()
        if seal is not None and sha256_of(self.tokenizer) == seal["sha256"]:
            self.key = sealed.digest_of([self._plan_key, seal["sha256"]])
            return True
        if os.path.lexists(self.tokenizer):
            if seal is not None:  # otherwise the run was killed before it was sealed
                self.damaged.append("tokenizer.json")
            _remove(self.tokenizer)
        return False

    def write_tokenizer(self, data: bytes) -> None:
        atomic.write_file(self.tokenizer, data)
        seal = {"sha256": hashlib.sha256(data).hexdigest()}
        sealed.write(self._in("tokenizer.seal"), seal, self._plan_key)
        self.key = sealed.digest_of([self._plan_key, seal["sha256"]])

    def _is_of_plan(self) -> bool:
        """Whether the work is that of this plan, by its key, if ``plan.json`` is damaged."""
        if self._read_seal() is not None:
            return True
        key = sealed.digest_of([self._plan_key, sha256_of(self.tokenizer)])
        return sealed.read(self._in("state.json"), key) is not None

    def _read_seal(self) -> dict[str, Any] | None:
        return sealed.read(self._in("tokenizer.seal"), self._plan_key)

    def _refuse_clashes(self, overwrite: bool) -> None:
        clashes = sorted(name for name in os.listdir(self.out) if _CLASH.fullmatch(name))
        if clashes and not overwrite:
            what = "a corpus" if own.NAME in clashes else "files that a corpus would replace"
            raise WriteError(
                errno.EEXIST,
                f"already contains {what} ({listed(clashes, _SHOWN)}); pass another folder, or overwrite "
                "(--overwrite) to replace it",
                self.out,
            )

    def _clear(self) -> None:
        """Remove an earlier plan: its key first, so that what remains is not taken for work."""
        self.discard()
        for name in os.listdir(self.path):
            if name not in _KEPT:
                _remove(self._in(name))

    def _forget_unsynced(self) -> None:
        """Remove files of tasks that were written before the last boot of the machine.

        They are not forced to disk, since they exist for seconds: they survive a killed process, but not
        always a loss of power.
        """
        boot = b""
        with suppress(OSError), open(_BOOT, "rb") as file:
            boot = file.read().strip()
        if system.bytes_at(self._fd, 100, 0) != boot:
            shutil.rmtree(self.tasks)
            os.mkdir(self.tasks)
            os.ftruncate(self._fd, 0)
            system.write_at(self._fd, memoryview(boot), 0)
            os.fsync(self._fd)

    def records(self, first: int, last: int) -> dict[int, Record]:
        """The records of tasks from ``first`` to ``last`` that are done; all other files are removed."""
        records: dict[int, Record] = {}
        names = set(os.listdir(self.tasks))
        for name in sorted(names):
            task = _TASK.fullmatch(name)
            if task is None or task[2] != "json" or not first <= int(task[1]) < last:
                continue
            content = sealed.read(os.path.join(self.tasks, name), self.key)
            if content is None:
                self.damaged.append(f"tasks/{name}")
                continue
            record = Record(**content)
            files = {f"{task[1]}.{end}": tuple(sums) for end, sums in record.files.items()}
            damaged = [name for name, sums in files.items() if sums != _crc32(os.path.join(self.tasks, name))]
            self.damaged += [f"tasks/{name}" for name in damaged]
            if not damaged:
                records[record.task] = record
                names -= {name, *files}
        for name in names:
            _remove(os.path.join(self.tasks, name))
        return records

    def read_state(self) -> dict[str, Any] | None:
        """The last state of this plan with this tokenizer, or None."""
        state = sealed.read(self._in("state.json"), self.key)
        if state is None and os.path.lexists(self._in("state.json")):
            self.forget_state("state.json")
        return state

    def write_state(self, state: Mapping[str, Any]) -> None:
        sealed.write(self._in("state.json"), state, self.key)

    def forget_state(self, damaged: str) -> None:
        """Remove every shard, since ``damaged`` does not match; keep the files of tasks to be merged."""
        self.damaged.append(damaged)
        _remove(self._in("state.json"))
        _remove(self.shards)
        os.mkdir(self.shards)

    def check_files(self, files: Mapping[str, str | None]) -> str | None:
        """The first file of complete shards that does not match its digest, or None."""
        with ThreadPoolExecutor() as pool:
            digests = zip(files, pool.map(self._digest_of, files), strict=True)
            return next((name for name, digest in digests if digest != files[name]), None)

    def _digest_of(self, name: str) -> str | None:
        """The digest of a file: here, in the output folder if ``publish`` was killed, or in a bucket."""
        for folder in (self.shards, self.out):
            if os.path.lexists(path := os.path.join(folder, name)):
                return sha256_of(path)
        return self.uploads.digest(name) if self.uploads else None

    def send(self, complete: Set[str]) -> None:
        """Move shards that are complete to the bucket, if the corpus is for one."""
        if self.uploads and self.uploads.at_once:
            self.uploads.send(self.shards, sorted(complete & set(os.listdir(self.shards))))

    def notes(self) -> list[str]:
        """What the user should know about this folder."""
        if not self.damaged:
            return []
        return [
            f"the work folder was damaged ({listed(self.damaged, _SHOWN)}); the damaged files were made again"
        ]

    def publish(self, manifest: own.Manifest) -> None:
        """Move complete files to the output folder, ``corpus.json`` last; repeated after a kill."""
        ready = os.listdir(self.shards)
        index = os.path.join(self.out, own.NAME)
        with errors.write_errors(self.out):
            if ready and os.path.exists(index):
                self._remove_corpus(index, keep={*ready, *dict(manifest.files)})
            for name in ready:
                os.replace(os.path.join(self.shards, name), os.path.join(self.out, name))
            atomic.sync_folder(self.out)
        own.write(self.out, manifest)
        self.discard()

    def discard(self) -> None:
        """Remove the plan, and with it the work; ``close`` removes the folder."""
        for name in _PLAN:
            with suppress(FileNotFoundError):
                os.unlink(self._in(name))

    def _remove_corpus(self, index: str, keep: set[str]) -> None:
        """Remove the corpus to overwrite: its index first, so that no part of it looks complete."""
        try:
            names = set(dict(own.read(index).files))
        except LowtideError:
            names = set()
        os.unlink(index)
        atomic.sync_folder(self.out)
        for name in names - keep:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.out, name))


def _remove(path: str) -> None:
    """Remove whatever is at ``path``."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _crc32(path: str) -> tuple[int, int] | None:
    """The size of a file and its CRC-32."""
    if not store.is_file(path):
        return None
    size = total = 0
    with store.opened(path) as file:
        while block := file.read_some(size, _BLOCK):
            size, total = size + len(block), zlib.crc32(block, total)
    return size, total


def sha256_of(path: str) -> str | None:
    """The digest of a file's bytes; None if there is no such file."""
    if not store.is_file(path):
        return None
    with store.opened(path) as file:
        return hashlib.file_digest(file.stream(), "sha256").hexdigest()


def _differences(earlier: Plan, plan: Plan) -> str:
    """How the plan of another run differs, in words."""
    differences = changes(earlier.get("settings", {}), plan["settings"], plan["settings"])
    before, now = (
        {str(source["path"]): source for source in one.get("sources", [])} for one in (earlier, plan)
    )
    differences += [f"{path} is new" for path in now if path not in before]
    differences += [f"{path} was among the sources" for path in before if path not in now]
    differences += [f"{path} has changed" for path in now if path in before and before[path] != now[path]]
    return listed(differences or ["the order of the sources or the version of lowtide"], _SHOWN)
