"""A corpus that is prepared in a local folder and published in a bucket, its index last."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

from lowtide._io import copying, store
from lowtide._io.system import cache_folder
from lowtide._prepare import sealed
from lowtide._prepare.summary import Summary
from lowtide._tokens.formats import own
from lowtide.errors import WriteError

PLAN = ".prepared.json"
"""Next to corpus.json: the digest of the plan, which the same command has again."""

_JOURNAL = ".uploaded.json"  # in the work folder: the files that were moved to the bucket
_GROUP = 32  # files between two records in the journal


class Uploads:
    """Files of a corpus that were moved from its work folder to the bucket.

    A file is recorded, with its digest and its ETag in the bucket, before it is removed here.
    """

    def __init__(self, address: str, work: str, old: own.Manifest | None) -> None:
        """``old`` is the corpus to replace, if there is one; it stays until all of the new one is here."""
        self.at_once = old is None  # whether shards are moved as soon as they are complete
        self._address, self._work = address, work
        self._old = dict(old.files) if old is not None else {}
        self._sent = sealed.read(os.path.join(work, _JOURNAL)) or {}

    def send(self, folder: str, names: Sequence[str]) -> None:
        """Copy files of a folder to the bucket, verified, and remove them."""
        for first in range(0, len(names), _GROUP):
            group = names[first : first + _GROUP]
            for name in group:
                digest = copying.copy_file(os.path.join(folder, name), f"{self._address}/{name}")
                self._sent[name] = [digest, self._etag(name)]
            sealed.write(os.path.join(self._work, _JOURNAL), self._sent)
            for name in group:
                os.unlink(os.path.join(folder, name))

    def digest(self, name: str) -> str | None:
        """The digest of a file in the bucket, if it is there and still the one that was sent."""
        digest, etag = self._sent.get(name, (None, None))
        return digest if digest is not None and self._etag(name) == etag else None

    def finish(self, manifest: own.Manifest) -> None:
        """Send the remaining files, the index last; remove those of earlier corpora and runs."""
        kept = (_JOURNAL, PLAN, own.NAME)  # with these a run that is killed from here on is resumed
        self.send(self._work, sorted(name for name in os.listdir(self._work) if name not in kept))
        for name, digest in manifest.files:
            if self._sent[name][0] != digest:
                raise WriteError(
                    errno.EIO,
                    "is not what was prepared; run the same command with overwrite (--overwrite)",
                    f"{self._address}/{name}",
                )
        copying.copy_file(os.path.join(self._work, own.NAME), f"{self._address}/{own.NAME}")
        shards = {name for name in self._sent if name.endswith((".bin", ".ends"))}
        for name in (shards | self._old.keys()) - dict(manifest.files).keys():
            store.delete(f"{self._address}/{name}")

    def _etag(self, name: str) -> str | None:
        entry = store.entry(f"{self._address}/{name}")
        return None if entry is None else entry.identity.etag or str(entry.identity.mtime_ns)


def work_folder(address: str) -> str:
    """The folder in which the corpus for an address is prepared: the same one when it is resumed."""
    name = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
    return os.path.join(cache_folder(), f"prepare-{name}")


def publish(address: str, work: str, overwrite: bool, prepared: Callable[[Uploads], Summary]) -> Summary:
    """Prepare in the folder ``work``, move it to ``address``, and remove the folder.

    Shards are moved as they are completed, and ``corpus.json``, without which they are not a corpus, last. A
    corpus that is replaced stays until all of the new one is here.
    """
    index = f"{address}/{own.NAME}"
    old = own.read(index) if store.is_file(index) else None
    if old is not None and not overwrite:
        done = os.path.join(work, own.NAME)
        if not store.is_file(done) or own.read(done) != old:  # else it is this one, and the folder remains
            raise WriteError(
                errno.EEXIST,
                "already contains a corpus; pass another address, or overwrite (--overwrite) to replace it",
                address,
            )
    uploads = Uploads(address, work, old)
    summary = prepared(uploads)
    if old is not None and old != summary.manifest:
        store.delete(index)  # first, so that no part of the old one looks complete
    uploads.finish(summary.manifest)
    shutil.rmtree(work)
    return replace(summary, folder=address)
