"""Functions of every sort with a context around each call: plain, coroutine, generator, async generator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide._memory.watch import Watch

_Function = Callable[..., Any]
_Context = Callable[[], "AbstractContextManager[Watch | None]"]


def wrapped(function: _Function, context: _Context) -> _Function:
    """``function`` with a new context around each call, such as a watch.

    Around a coroutine it lasts until that returns; around a generator from the first item to the last, with
    what the caller does between two items, as a ``with`` block inside of it would.
    """
    if inspect.iscoroutinefunction(function):
        wrapper = _coroutine(function, context)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(function, context)
    elif inspect.isasyncgenfunction(function):
        wrapper = _async_generator(function, context)
    else:
        wrapper = _plain(function, context)
    return functools.wraps(function)(wrapper)


def _plain(function: _Function, context: _Context) -> _Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return call


def _coroutine(function: _Function, context: _Context) -> _Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            return await function(*args, **kwargs)

    return call


# Between two items it is the caller's turn, and an alarm must not be raised in the caller's code, where
# nothing would expect it: hence `yield from` is spelled out, with a watch paused around `yield`.


def _generator(function: _Function, context: _Context) -> _Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        step, value = inner.send, None
        try:
            with context() as watch:
                while True:
                    try:
                        item = step(value)
                    except StopIteration as stop:
                        return stop.value
                    if watch is not None:
                        watch.pause()
                    try:
                        step, value = inner.send, (yield item)
                    except GeneratorExit:
                        inner.close()
                        raise
                    except BaseException as error:
                        step, value = inner.throw, error
                    item = None  # the caller's now, and not to be held here while the next one is made
                    if watch is not None:
                        watch.resume()
        finally:
            value = None  # an exception that was thrown in must not refer to itself through this frame

    return call


def _async_generator(function: _Function, context: _Context) -> _Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        step, value = inner.asend, None
        try:
            with context() as watch:
                while True:
                    try:
                        item = await step(value)
                    except StopAsyncIteration:
                        return
                    if watch is not None:
                        watch.pause()
                    try:
                        step, value = inner.asend, (yield item)
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:
                        step, value = inner.athrow, error
                    item = None
                    if watch is not None:
                        watch.resume()
        finally:
            value = None

    return call
