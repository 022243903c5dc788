"""Objects whose public attributes cannot be assigned."""

from __future__ import annotations


class ReadOnly:
    """Refuses assignments to public names: with another shape, rows would be read wrongly.

    A name that does not exist is refused too, since it is a typo.
    """

    _remedy = "open it again with other arguments"

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise self._refusal(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if not name.startswith("_"):
            raise self._refusal(name)
        super().__delattr__(name)

    def _refusal(self, name: str) -> AttributeError:
        kind = type(self).__name__
        problem = "is read-only" if hasattr(type(self), name) else "does not exist"
        return AttributeError(f"{kind}.{name} {problem}; {self._remedy}", name=name, obj=self)
