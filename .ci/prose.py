"""Check the words: technical English, as NumPy's and PyTorch's documentation write it.

Reads comments, strings and identifiers of Python files, and Markdown. Prints each hit and what to write
instead; exits with 1 if there is one. A line that must keep its words ends in `prose: ok`.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "benchmarks", "examples", "docs", ".ci", ".github")

WORDS = {
    r"anew": "again",
    r"(go|goes|going|went|gone) on(?! to)": "continue, resume",
    r"(begin|begins|began|begun)": "start",
    r"(let|lets|letting) (it |them |memory |this )?go": "release",
    r"cut short": "truncated",
    r"made ahead": "prefetched",
    r"(unless |is |are |was |were |be )?told": "given, reported, passed",
    r"said": "given, reported",
    r"(?<!there )(?<!which )is no (?!longer|more|different|such|reason|need)": "is not a",
    r"of (its|their|our|your|my|one's) own": "its own X",
    r"dear": "expensive",
    r"whole numbers?": "integer",
    r"people pass on": "usual workarounds",
    r"let it speak": "sample from it",
    r"\d (\w+ )?an? (second|minute|hour|step|batch|epoch|file|format|row|chunk|token|document)": "per",
}
IDENTIFIERS = {"begun", "found", "made", "mine", "said", "told", "wanted"}
PATTERNS = [
    (
        re.compile(
            rf"\b(?:{words})\b" if words[-1] != ")" or words[0] != "(" else rf"\b{words}\b", re.IGNORECASE
        ),
        better,
    )
    for words, better in WORDS.items()
]


def spans(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and text: of Markdown each line, of Python each comment, string and identifier."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            yield from enumerate(token.string.splitlines(), token.start[0])
        elif kind == "NAME" and token.string in IDENTIFIERS:
            yield token.start[0], f"identifier {token.string}"
        elif kind == "NAME" and "_" in token.string:
            yield token.start[0], token.string.replace("_", " ")


def problems(path: Path) -> Iterator[str]:
    """One line for each word in ``path`` that has a better one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    seen = set()
    for number, text in spans(path):
        if "prose: ok" in lines[number - 1]:
            continue
        hits = [(hit[0], better) for pattern, better in PATTERNS for hit in [pattern.search(text)] if hit]
        if text.startswith("identifier "):
            hits = [(text, "a noun for what it is")]
        for words, better in hits:
            if (number, words) not in seen:
                seen.add((number, words))
                yield f"{path.relative_to(ROOT)}:{number}: {words!r}: write {better!r}"


def main(names: list[str]) -> int:
    """Check the files given, or all."""
    paths = [Path(name).resolve() for name in names] or sorted(
        path
        for path in [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
        if path.suffix in (".md", ".py", ".yml") and path != Path(__file__).resolve()
    )
    lines = [line for path in paths for line in problems(path)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
