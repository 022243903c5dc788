"""Fixtures for tests that measure real processes."""

from tests.support.cgroup import limited

__all__ = ["limited"]
