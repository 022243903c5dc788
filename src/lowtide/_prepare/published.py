"""A corpus that is prepared in a local folder and published in a bucket, its index last."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace

from lowtide._io import copying, store
from lowtide._prepare.summary import Summary
from lowtide._tokens.formats import own
from lowtide.errors import WriteError


def work_folder(address: str) -> str:
    """The folder in which the corpus for an address is prepared: the same one when it is resumed."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
    return os.path.join(base, "lowtide", f"prepare-{name}")


def publish(address: str, work: str, overwrite: bool, prepared: Callable[[], Summary]) -> Summary:
    """Prepare in the folder ``work``, copy it to ``address``, and remove the folder.

    Files that an earlier run has copied are skipped. Until ``corpus.json`` is there, which comes last, nobody
    takes them for a corpus.
    """
    index = f"{address}/{own.NAME}"
    old = _old(index)
    if old is not None and not overwrite:
        done = os.path.join(work, own.NAME)
        if not store.is_file(done) or own.read(done) != old:  # else it is ours, and only the folder is left
            raise WriteError(
                errno.EEXIST,
                "already contains a corpus; pass another address, or overwrite (--overwrite) to replace it",
                address,
            )
    summary = prepared()
    if old is not None and old != summary.manifest:
        store.delete(index)  # first, so that no part of the old one looks complete
    copying.copy(work, address)
    if old is not None:
        names = {name for name, _ in summary.manifest.files}
        for name, _ in old.files:
            if name not in names:
                store.delete(f"{address}/{name}")
    shutil.rmtree(work)
    return replace(summary, folder=address)


def _old(index: str) -> own.Manifest | None:
    return own.read(index) if store.is_file(index) else None
