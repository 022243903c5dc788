"""The processes of a run: one, or several under ``torchrun``, and what they say to each other.

The engine is PyTorch's own (``DistributedDataParallel``). Everything that ranks must agree on, such as when
to stop, goes through ``sum``.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from lowtide._gpt.model import torch
from lowtide.errors import ArgumentError


class Ranks:
    """This process among those of the run. A context: at its end the group is left."""

    def __init__(self, device: str) -> None:
        self.rank = _number("RANK", 0)
        self.world_size = _number("WORLD_SIZE", 1)
        if device == "cuda" and self.world_size > 1:
            device = f"cuda:{_number('LOCAL_RANK', 0)}"
        elif device.startswith("cuda:") and self.world_size > 1:
            raise ArgumentError(
                f"device {device!r} is one GPU, and torchrun has started {self.world_size} processes, each "
                "of which takes its own: use --device cuda"
            )
        self.device = usable(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world_size > 1:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            torch.distributed.init_process_group(backend)

    @property
    def first(self) -> bool:
        """The rank that writes files and talks."""
        return self.rank == 0

    def share(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model, with gradients that are averaged over all ranks in ``backward``."""
        if self.world_size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def quiet(self, model: torch.nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Gradients are exchanged once a step: with its last micro-batch."""
        if isinstance(model, torch.nn.parallel.DistributedDataParallel) and not last:
            return model.no_sync()
        return nullcontext()

    def sum(self, *values: float) -> list[float]:
        """Each value, summed over all ranks; the same on all of them."""
        if self.world_size == 1:
            return list(values)
        together = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(together)
        summed: list[float] = together.tolist()
        return summed

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.world_size > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def usable(device: str) -> torch.device:
    """A device that is there, or an error that says what is."""
    try:
        made = torch.device(device)
        torch.empty(0, device=made)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise ArgumentError(
            f"device {device!r} cannot be used here: {said}; there is {', '.join(there)}"
        ) from error
    return made


def _number(name: str, default: int) -> int:
    """What torchrun says in the environment."""
    said = os.environ.get(name)
    if said is None:
        return default
    try:
        return int(said)
    except ValueError:
        raise ArgumentError(
            f"the environment variable {name} must be a whole number, got {said!r}; start several processes "
            "with torchrun"
        ) from None
