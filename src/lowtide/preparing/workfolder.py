"""The folder ``.prepare`` inside the output: what a run has done, so that the next can go on.

::

    .prepare/plan.json    everything that decides the bytes; another plan is refused
             lock         held by the run; says since which start of the machine
             tokenizer.json
             tasks/       what tasks that are done have left, until it is part of a shard
             state.json   how much of that is part of a shard, and on disk
             out/         shards, as they will lie in the output folder

Nothing of a run is seen outside of it before all is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lowtide import errors, publish
from lowtide.errors import ArgumentError, FormatError, LowtideError, StateError, WriteError
from lowtide.formats import own
from lowtide.formats.tokens import UNFINISHED
from lowtide.preparing.encoding import write_json
from lowtide.preparing.tasks import Record

_CLASH = re.compile(r"(train|val)(-\d+)?\.(bin|ends)|corpus\.json|tokenizer\.json|meta\.pkl")
_SHOWN = 4  # differences that an error lists
_BOOT = "/proc/sys/kernel/random/boot_id"

Plan = Mapping[str, Any]


class Workfolder:
    """One output folder and the work in it, held by this process from ``__init__`` to ``close``."""

    def __init__(self, out: str) -> None:
        self.out = os.path.abspath(out)
        self.path = os.path.join(self.out, UNFINISHED)
        self.tasks = os.path.join(self.path, "tasks")
        self.shards = os.path.join(self.path, "out")
        self.tokenizer = os.path.join(self.path, "tokenizer.json")
        if os.path.exists(self.out) and not os.path.isdir(self.out):
            raise ArgumentError(f"{self.out}: is a file, and the corpus needs a folder; name another one")
        try:
            os.makedirs(self.path, exist_ok=True)
            self._fd = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise errors.writing(self.path, error) from None
        if not publish.lock(self._fd):
            os.close(self._fd)
            raise WriteError(
                f"{self.out}: another lowtide prepare is at work here (it holds {self.path}/lock); wait for "
                "it to end, or name another folder"
            )

    def close(self) -> None:
        """Let the folder go. One in which nothing was done is taken away again."""
        if not os.path.exists(os.path.join(self.path, "plan.json")) or not self._has_work():
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):
                os.rmdir(self.out)
        os.close(self._fd)

    def begin(self, plan: Plan, *, overwrite: bool) -> bool:
        """Make the folder ready for a plan; true if an earlier run of the same plan can be gone on with."""
        earlier = self._read("plan.json")
        goes_on = bool(earlier == json.loads(json.dumps(plan)))
        if not goes_on:
            if earlier is not None and self._has_work() and not overwrite:
                raise StateError(
                    f"{self.out}: holds an unfinished prepare with other sources or settings: "
                    f"{_differences(earlier, plan)}; run it as before to go on with it, or pass overwrite "
                    "(--overwrite) to begin anew"
                )
            self._refuse_clashes(overwrite)
            self._clear()
        for folder in (self.tasks, self.shards):
            os.makedirs(folder, exist_ok=True)
        self._forget_unsynced()
        if not goes_on:
            write_json(os.path.join(self.path, "plan.json"), plan, durable=True)
        return goes_on

    def _has_work(self) -> bool:
        """Whether there is anything to go on with."""
        return self.read_state() is not None or (os.path.isdir(self.tasks) and bool(os.listdir(self.tasks)))

    def _refuse_clashes(self, overwrite: bool) -> None:
        clashes = sorted(name for name in os.listdir(self.out) if _CLASH.fullmatch(name))
        if clashes and not overwrite:
            what = "a corpus" if own.NAME in clashes else "files that a corpus would replace"
            shown = ", ".join(clashes[:_SHOWN]) + (", …" if len(clashes) > _SHOWN else "")
            raise WriteError(
                f"{self.out}: holds {what} already ({shown}); name another folder, or pass overwrite "
                "(--overwrite) to replace it"
            )

    def _clear(self) -> None:
        """Forget an earlier plan: the plan first, so that what is left of the rest is not taken for work."""
        self.discard()
        for name in os.listdir(self.path):
            path = os.path.join(self.path, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif name not in ("lock", "stdin"):
                os.unlink(path)

    def _forget_unsynced(self) -> None:
        """Drop what tasks left before the machine was last started.

        Their files live for seconds, so they are not forced to disk: a process that is killed loses nothing
        of them, but a machine that loses power may, without a sign.
        """
        boot = ""
        with suppress(OSError), open(_BOOT) as file:
            boot = file.read().strip()
        if os.pread(self._fd, 100, 0).decode() != boot:
            shutil.rmtree(self.tasks)
            os.mkdir(self.tasks)
            os.ftruncate(self._fd, 0)
            publish.write_all(self._fd, memoryview(boot.encode()), 0)
            os.fsync(self._fd)
        for name in os.listdir(self.tasks):
            if not name.endswith((".bin", ".ends", ".json")):  # attempts that were killed
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.tasks, name))

    def records(self) -> dict[int, Record]:
        """What the tasks that are done have told."""
        found = {}
        for name in os.listdir(self.tasks):
            if name.endswith(".json"):
                path = os.path.join(self.tasks, name)
                content = self._read(os.path.join("tasks", name))
                record = Record.from_json(content or {}, path)
                found[record.task] = record
        return found

    def read_state(self) -> dict[str, Any] | None:
        return self._read("state.json")

    def write_state(self, state: Mapping[str, Any]) -> None:
        write_json(os.path.join(self.path, "state.json"), state, durable=True)

    def publish(self, manifest: own.Manifest) -> None:
        """Move what is complete into the output folder, ``corpus.json`` last; after a kill, once more."""
        ready = os.listdir(self.shards)
        index = os.path.join(self.out, own.NAME)
        try:
            if ready and os.path.exists(index):
                self._remove_corpus(index, keep=set(ready))
            for name in ready:
                os.replace(os.path.join(self.shards, name), os.path.join(self.out, name))
            publish.sync_folder(self.out)
        except OSError as error:
            raise errors.writing(self.out, error) from error
        own.write(self.out, manifest)
        self.discard()

    def discard(self) -> None:
        """Forget the plan, and with it the work; ``close`` removes the folder."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, "plan.json"))

    def _remove_corpus(self, index: str, keep: set[str]) -> None:
        """Take the corpus away that is overwritten: its index first, so that no half of it looks whole."""
        try:
            old = own.read(index)
            names = [
                name
                for shards in old.splits.values()
                for shard in shards
                for name in (shard.file, shard.ends)
            ]
            if old.tokenizer is not None:
                names.append(old.tokenizer.file)
        except LowtideError:
            names = []
        os.unlink(index)
        publish.sync_folder(self.out)
        for name in names:
            if name is not None and name not in keep:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.out, name))

    def _read(self, name: str) -> dict[str, Any] | None:
        path = os.path.join(self.path, name)
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise errors.reading(path, error) from error
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise FormatError(f"{path}: is damaged; remove {self.path} and run the same command again")
        return content


def _differences(earlier: Plan, plan: Plan) -> str:
    """What another run's plan has otherwise, in words."""
    told = [
        f"{key} was {earlier.get('settings', {}).get(key)!r} and is {value!r}"
        for key, value in plan["settings"].items()
        if earlier.get("settings", {}).get(key) != value
    ]
    before = _by_path(earlier.get("sources", []))
    now = _by_path(plan["sources"])
    told += [f"{path} is new" for path in now if path not in before]
    told += [f"{path} was among the sources" for path in before if path not in now]
    told += [f"{path} has changed" for path in now if path in before and before[path] != now[path]]
    if not told:
        told = ["the order of the sources or the version of lowtide"]
    return "; ".join(told[:_SHOWN]) + (f"; … {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")


def _by_path(sources: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {str(source["path"]): source for source in sources}
