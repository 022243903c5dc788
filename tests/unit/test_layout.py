"""Every module of src is short, and has a test file of its name or a note where it is tested."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lowtide

SRC = Path(str(lowtide.__file__)).parent
TESTS = Path(__file__).parent.parent
MAX_LINES = 400

TESTED_IN = {
    "_arrays/assignment.py": "unit/arrays/test_writable.py",
    "_arrays/formats/format.py": "unit/arrays/formats/test_formats.py",
    "_arrays/formats/layout.py": "unit/arrays/formats/test_formats.py",
    "_arrays/conversions.py": "unit/arrays/test_views.py",
    "_arrays/deriving.py": "unit/arrays/test_views.py",
    "_arrays/rows.py": "unit/arrays/test_array.py",
    "_arrays/selections.py": "unit/arrays/test_views.py",
    "_arrays/stored.py": "unit/arrays/test_array.py",
    "_arrays/targets.py": "unit/arrays/test_writer.py",
    "_arrays/unpublished.py": "unit/arrays/test_writer.py",
    "_arrays/uploaded.py": "process/io/remote/test_uploads.py",
    "_compare/plot.py": "process/cli/test_compare.py",
    "_compare/runs.py": "process/cli/test_compare.py",
    "_compare/walks.py": "process/cli/test_compare.py",
    "_extras.py": "process/prepare/tokenizers/test_tokenizers.py",
    "_gpt/aliases.py": "integration/gpt/test_config.py",
    "_gpt/data.py": "integration/gpt/test_loop.py",
    "_gpt/folder.py": "integration/gpt/test_runs.py",
    "_gpt/plot.py": "integration/gpt/test_metrics.py",
    "_gpt/portable/modeling_lowtide.py": "integration/gpt/test_export.py",
    "_gpt/ranks.py": "integration/gpt/test_loop.py",
    "_gpt/train.py": "integration/gpt/test_loop.py",
    "_io/atomic.py": "unit/arrays/test_writer.py",
    "_io/pace.py": "unit/arrays/test_writer.py",
    "_io/pread.py": "unit/io/test_reader.py",
    "_io/sinks.py": "process/io/test_copying.py",
    "_memory/alarm.py": "memory/test_calls.py",
    "_memory/lines/counters.py": "memory/test_lines.py",
    "_memory/lines/profile.py": "memory/test_lines.py",
    "_memory/lines/script.py": "memory/test_lines.py",
    "_memory/lines/table.py": "memory/test_lines.py",
    "_memory/lines/tracer.py": "memory/test_lines.py",
    "_memory/proc.py": "memory/test_snapshot.py",
    "_memory/profile/command.py": "memory/test_profiler.py",
    "_memory/profile/document.py": "process/cli/test_profile.py",
    "_memory/profile/files.py": "memory/test_profiler.py",
    "_memory/profile/live.py": "process/cli/test_watch.py",
    "_memory/profile/observer.py": "memory/test_profiler.py",
    "_memory/profile/outcome.py": "unit/memory/profile/test_verdict.py",
    "_memory/profile/profiler.py": "memory/test_profiler.py",
    "_memory/profile/recording.py": "memory/test_profiler.py",
    "_memory/profile/targets.py": "process/cli/test_watch.py",
    "_memory/sampler.py": "process/memory/test_helper.py",
    "_memory/timestamps.py": "process/memory/test_mprof.py",
    "_memory/tree.py": "memory/test_watch.py",
    "_prepare/inputs/datasets.py": "integration/prepare/test_datasets.py",
    "_prepare/run.py": "unit/prepare/test_prepare.py",
    "_prepare/settings.py": "unit/prepare/test_prepare.py",
    "_prepare/shard_writer.py": "unit/prepare/test_merge.py",
    "_prepare/tokenizers/kind.py": "unit/prepare/test_kinds.py",
    "_prepare/worker.py": "process/prepare/test_resuming.py",
    "_tensors.py": "integration/test_torch.py",
    "_token_datasets.py": "integration/test_datasets.py",
    "_tokens/formats/__init__.py": "unit/tokens/formats/test_tokens.py",
    "_tokens/formats/arrowstream.py": "integration/tokens/formats/test_arrow.py",
    "_tokens/formats/npytokens.py": "unit/tokens/formats/test_tokens.py",
    "_tokens/formats/records.py": "integration/tokens/formats/test_mds.py",
    "_tokens/marks.py": "unit/tokens/formats/test_llmc.py",
    "_tokens/states.py": "unit/tokens/test_schedules.py",
    "_tokens/steps.py": "unit/tokens/test_ahead.py",
    "_tokens/stretches.py": "unit/tokens/test_schedules.py",
    "cli/__init__.py": "process/cli/test_commands.py",
    "cli/copy.py": "process/io/test_copying.py",
    "cli/export.py": "process/cli/test_sample.py",
    "cli/info.py": "process/cli/test_commands.py",
    "cli/mprof.py": "process/memory/test_mprof.py",
    "cli/options.py": "process/cli/test_commands.py",
    "cli/output.py": "process/cli/test_names.py",
    "cli/prepare_progress.py": "process/cli/test_prepare.py",
    "cli/shuffle.py": "process/cli/test_commands.py",
}
"""Modules without a test file of their name, and the file whose tests cover them."""


def has_code(path: Path) -> bool:
    """Whether a module defines a function or a class: fronts and namespaces do not."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for node in ast.parse(path.read_text()).body
    )


def test_file(path: Path) -> Path:
    """Where the test of a module is, below tests/unit, tests/process, tests/memory or tests/integration."""
    parts = [part.lstrip("_") for part in path.relative_to(SRC).with_suffix("").parts]
    if path.name == "__init__.py":
        parts = [*parts[:-1], parts[-2]]
    return Path(*parts[:-1], f"test_{parts[-1]}.py")


test_file.__test__ = False  # type: ignore[attr-defined]
MODULES = [path for path in sorted(SRC.rglob("*.py")) if has_code(path)]
# tests/memory holds the tests of lowtide._memory itself, not in a folder below.
ROOTS = [TESTS, *(TESTS / name for name in ("unit", "process", "memory", "integration"))]
EXISTING = {test.relative_to(root) for root in ROOTS for test in root.rglob("test_*.py")}


def test_every_module_has_a_test_of_its_name() -> None:
    missing = {str(path.relative_to(SRC)) for path in MODULES if test_file(path) not in EXISTING}
    assert missing - TESTED_IN.keys() == set(), "write the test file, or say in TESTED_IN where it is tested"
    absent = {module: TESTED_IN[module] for module in missing if not (TESTS / TESTED_IN[module]).exists()}
    assert absent == {}, "these test files do not exist"
    assert TESTED_IN.keys() - missing == set(), "these have a test file of their name, or are gone"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_module_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES
