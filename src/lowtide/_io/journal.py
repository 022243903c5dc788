"""The published size of a file to which rows are being appended.

The writer appends in place. Before the first new byte it creates a journal beside the file,
``<path>.appending`` with ``{"size": N}``, and removes it when the new rows are on disk and counted. A reader
that finds the journal reads only what was published before: the first N bytes.
"""

from __future__ import annotations

from lowtide._io import store
from lowtide._printable import brief
from lowtide.errors import FormatError, NotFoundError, TruncatedFileError

SUFFIX = ".appending"
_MAX_JOURNAL = 4096  # {"size": N} takes about 30 bytes


def published_size(path: str, stat_size: int) -> int:
    """The bytes of ``path`` that may be read: all ``stat_size`` of them, or as many as its journal lists.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "tokens.bin")
    ...     with open(path + ".appending", "w") as journal:
    ...         _ = journal.write('{"size": 4096}')
    ...     published_size(path, 5000), published_size(path + "2", 5000)
    (4096, 5000)
    """
    size = journal_size(path)
    if size is None:
        return stat_size
    if size > stat_size:
        raise TruncatedFileError(
            f"{path}: truncated ({stat_size} bytes, expected the {size} that the journal of an append lists "
            "as published); restore it from a copy"
        )
    return size


def journal_size(path: str) -> int | None:
    """The size in the journal of ``path``, or None if no append is under way.

    >>> journal_size("nothing-here.npy") is None
    True
    """
    if not store.filesystem(path).appends:
        return None
    journal = store.real(path) + SUFFIX  # the writer follows links, too
    if not store.is_file(journal):
        return None
    try:
        with store.opened(journal) as content:
            text = content.read(0, min(content.size, _MAX_JOURNAL), "journal")
    except NotFoundError:  # the append ended between the two calls
        return None
    return _parse(journal, text)


def _parse(journal: str, text: bytes) -> int:
    import json  # only where there is a journal

    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    size = content.get("size") if isinstance(content, dict) else None
    if type(size) is not int or size < 0:
        raise FormatError(
            f'{journal}: is not the journal of an append (found {brief(text, 60)}, expected {{"size": N}}); '
            f"if no append is under way, delete this journal"
        )
    return size
