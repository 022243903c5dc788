"""Names and texts from elsewhere, made safe to show in a terminal, a log or a page."""

from __future__ import annotations


def printable(text: object, keep: str = "") -> str:
    r"""``str(text)`` with every character that is not printable written as its escape.

    A file name, the name of a tensor or a piece of a file may hold whatever its author chose: sequences that
    a terminal obeys, newlines that look like further output, overrides of the direction of text, bytes that
    are not UTF-8 (surrogates, which no stream can encode).

    Parameters
    ----------
    text : object
        What to show.
    keep : str
        Characters to leave as they are, such as ``"\n"`` for a text of several lines.

    Examples
    --------
    >>> print(printable("a\x1b[31mred\nb\u202e.npy"))
    a\x1b[31mred\nb\u202e.npy
    >>> print(printable("caf\u00e9 \udcff.npy"))
    café \udcff.npy
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in shown
    )
