"""lowtide._closing: a with block closes, also after an error."""

from __future__ import annotations

import pytest

from lowtide._closing import Closing


class Door(Closing):
    is_open = True

    def close(self) -> None:
        self.is_open = False

    def _check_open(self) -> None:
        if not self.is_open:
            raise ValueError("closed")


def test_end_of_block_closes() -> None:
    with Door() as door:
        assert door.is_open
    assert not door.is_open


def test_error_in_block_closes_and_is_raised() -> None:
    door = Door()
    with pytest.raises(KeyError), door:
        raise KeyError
    assert not door.is_open


def test_closed_object_cannot_be_entered() -> None:
    door = Door()
    door.close()
    with pytest.raises(ValueError, match="closed"), door:
        pass


def test_object_without_check_can_be_reentered() -> None:
    class Gate(Closing):
        def close(self) -> None:
            pass

    with Gate() as gate, gate:
        assert isinstance(gate, Gate)
