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


def brief(value: object, limit: int = 200) -> str:
    """``repr(value)`` cut to ``limit`` characters, for values that a stranger chose.

    >>> brief("x" * 1000, limit=8)
    "'xxxxxxx…"
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of more than 4,300 digits; a list nested too deep
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else text[:limit] + "…"
