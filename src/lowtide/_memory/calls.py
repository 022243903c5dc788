"""Functions of every sort with a watch around each call: plain, coroutine, generator, async generator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide._memory.watch import Watch

_Function = Callable[..., Any]


def watched(function: _Function, watch: Callable[[], Watch]) -> _Function:
    """``function`` with a new watch around each call.

    A coroutine is watched until it returns. A generator is watched from its first item to its last, with
    what the caller adds between two items, as a ``with`` block inside of it would be.
    """
    if inspect.iscoroutinefunction(function):
        wrapper = _coroutine(function, watch)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(function, watch)
    elif inspect.isasyncgenfunction(function):
        wrapper = _async_generator(function, watch)
    else:
        wrapper = _plain(function, watch)
    return functools.wraps(function)(wrapper)


def _plain(function: _Function, watch: Callable[[], Watch]) -> _Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        with watch():
            return function(*args, **kwargs)

    return call


def _coroutine(function: _Function, watch: Callable[[], Watch]) -> _Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with watch():
            return await function(*args, **kwargs)

    return call


# Between two items it is the caller's turn, and an alarm must not be raised in the caller's code, where
# nothing would expect it: hence `yield from` is spelled out, with the watch paused around `yield`.


def _generator(function: _Function, watch: Callable[[], Watch]) -> _Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        step, value = inner.send, None
        try:
            with watch() as guard:
                while True:
                    try:
                        item = step(value)
                    except StopIteration as stop:
                        return stop.value
                    guard.pause()
                    try:
                        step, value = inner.send, (yield item)
                    except GeneratorExit:
                        inner.close()
                        raise
                    except BaseException as error:
                        step, value = inner.throw, error
                    item = None  # the caller's now, and not to be held here while the next one is made
                    guard.resume()
        finally:
            value = None  # an exception that was thrown in must not refer to itself through this frame

    return call


def _async_generator(function: _Function, watch: Callable[[], Watch]) -> _Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        step, value = inner.asend, None
        try:
            with watch() as guard:
                while True:
                    try:
                        item = await step(value)
                    except StopAsyncIteration:
                        return
                    guard.pause()
                    try:
                        step, value = inner.asend, (yield item)
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:
                        step, value = inner.athrow, error
                    item = None
                    guard.resume()
        finally:
            value = None

    return call
