"""The tokenizer of a run: named, or made from the sources in a first pass over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from lowtide._prepare import tokenizers
from lowtide._prepare.executors import Executor
from lowtide._prepare.reading import ReadOptions, read
from lowtide._prepare.running import run
from lowtide._prepare.tasks import Task
from lowtide._prepare.tokenizers import Tokenizer

SAMPLE = 32 * 2**20
"""Characters of the sources, at most, that a tokenizer is trained on."""

_PLACES = 64  # in the sources from which they are taken


def make(
    name: str,
    tasks: Sequence[Task],
    options: ReadOptions,
    executor: Callable[[], Executor],
    *,
    skip: bool,
    tick: Callable[[int], object] = lambda weight: None,
) -> Tokenizer:
    """The tokenizer called ``name``; ``tick`` is called with the bytes that a pass for it has read."""
    if name != "char":
        return tokenizers.make(name, sample=partial(sample, tasks, options, skip=skip))
    characters: set[str] = set()
    for task, found in run(tasks, partial(characters_of, options=options, skip=skip), executor()):
        characters.update(found)
        tick(task.weight)
    return tokenizers.make(name, alphabet=characters)


def characters_of(task: Task, *, options: ReadOptions, skip: bool) -> str:
    """Every character of a task's text, once."""
    return "".join(sorted(tokenizers.alphabet(_texts(task, options, skip))))


def sample(tasks: Sequence[Task], options: ReadOptions, *, skip: bool) -> Iterator[str]:
    """Text from places spread evenly over the sources. It depends on the plan alone."""
    count = min(_PLACES, len(tasks))
    for place in range(count):
        left = SAMPLE // count
        for text in _texts(tasks[place * len(tasks) // count], options, skip):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                break


def _texts(task: Task, options: ReadOptions, skip: bool) -> Iterator[str]:
    for unit in task.units:
        for piece in read(unit, options, _pass_over if skip else None):
            yield piece.text


def _pass_over(error: Exception) -> None:
    """What cannot be read is counted when it is encoded."""
