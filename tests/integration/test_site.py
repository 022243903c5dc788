"""The guide as a site: it builds without a warning, links lead somewhere, and it says what the code says."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from lowtide import errors
from lowtide._gpt.config import FIELDS
from lowtide.cli import COMMANDS
from tests.support.guide import ROOT
from tests.support.shared import shared

TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``make docs`` builds it: strictly, so that a warning is a failure."""

    def make(out: Path) -> Path:
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
            cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert not done.returncode, done.stderr
        return out

    return shared(tmp_path_factory, "site", make)


class _Addresses(HTMLParser):
    """What a page loads by itself; where its links lead is up to the reader."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        result = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.loaded.append(result.get("src") or "")
        if tag == "link" and result.get("rel") in ("stylesheet", "preconnect", "preload", "icon"):
            self.loaded.append(result.get("href") or "")


def test_site_has_no_external_references(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        addresses = _Addresses()
        addresses.feed(page.read_text(encoding="utf-8"))
        strange = [address for address in addresses.loaded if re.match(r"(https?:)?//", address)]
        assert not strange, f"{page.name} loads {strange}"


@pytest.mark.parametrize("name", ["open", "create", "corpus", "mix", "prepare", "watch", "shuffle"])
def test_reference_has_public_names(site: Path, name: str) -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    assert f'id="lowtide.{name}"' in reference


def test_docstring_examples_are_rendered_as_code(site: Path) -> None:
    """And not quotations, which is what Markdown takes ``>>>`` for."""
    reference = (site / "reference" / "arrays.html").read_text(encoding="utf-8")
    assert "<blockquote>" not in reference
    assert ":class:" not in reference
    assert '<span class="gp">&gt;&gt;&gt; </span>' in reference


def test_every_command_has_a_page(site: Path) -> None:
    for command in COMMANDS:
        page = (site / "commands" / f"{command}.html").read_text(encoding="utf-8")
        assert f"Usage: lowtide {command}" in page
        listed = f"({command}.md)" in (ROOT / "docs" / "commands" / "index.md").read_text(encoding="utf-8")
        assert listed, f"commands/index.md does not list {command}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_repository_links_resolve(page: str) -> None:
    """Those of the guide are checked when it is built."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for part in (part for token in MarkdownIt().parse(text) for part in token.children or ()):
        address = str(part.attrGet("href") or part.attrGet("src") or "")
        if not address or re.match(r"\w+:", address):
            continue
        path, _, anchor = address.partition("#")
        assert (ROOT / path).exists(), f"{page} links to {address}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{page} links to {address}; there are {slugs}"


def test_every_exception_is_documented() -> None:
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.LowtideError) and not name.startswith("_"):
            assert f"| `{name}` |" in TROUBLESHOOTING, f"{name} is not in the table of troubleshooting.md"


def test_every_setting_is_documented() -> None:
    training = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+)` \|(?:.*)\| (.+) \|$", training, re.MULTILINE))
    assert {name: one.metadata["help"] for name, one in FIELDS.items()} == {
        name: quoted for name, quoted in table.items() if name in FIELDS
    }


def _messages() -> list[str]:
    """Every text in lowtide's sources, with ``…`` for what is filled in."""
    result = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
                result.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                result.append(node.value)
    return result


def test_documented_messages_exist_in_code() -> None:
    messages = _messages()
    headings = re.findall(r"^### (.+) \{", TROUBLESHOOTING, re.MULTILINE)
    assert len(headings) > 30
    for quoted in (quoted for heading in headings for quoted in re.findall(r"`([^`]+)`", heading)):
        words = [re.escape(part.strip()) for part in quoted.split("…")]
        pattern = re.compile(".*".join(words))
        assert any(pattern.search(message) for message in messages), f"no message of lowtide says {quoted!r}"


def test_recordings_are_shown_as_reports(site: Path) -> None:
    page = (site / "recordings" / "training.html").read_text(encoding="utf-8")
    assert "bounded: peak" in page
    assert 'href="recordings/training.html"' in (site / "training.html").read_text(encoding="utf-8")
