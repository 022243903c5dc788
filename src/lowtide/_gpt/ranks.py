"""Processes of a run: one, or several under ``torchrun``, with PyTorch's ``DistributedDataParallel``.

Everything that ranks must agree on, such as when to stop, goes through ``sum``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from lowtide._gpt.model import torch
from lowtide._ranks import variable
from lowtide.errors import ArgumentError


class Ranks:
    """The rank of this process and its peers: a context manager that leaves the process group at its end."""

    def __init__(self, device: str) -> None:
        self.rank = variable("RANK", 0)
        self.world_size = variable("WORLD_SIZE", 1)
        if device == "cuda" and self.world_size > 1:
            device = f"cuda:{variable('LOCAL_RANK', 0)}"
        elif device.startswith("cuda:") and self.world_size > 1:
            raise ArgumentError(
                f"device {device!r} is one GPU, expected one for each of the {self.world_size} processes; "
                "use --device cuda"
            )
        self.device = usable(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world_size > 1:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            torch.distributed.init_process_group(backend)

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and output."""
        return self.rank == 0

    def share(self, model: torch.nn.Module) -> torch.nn.Module:
        """Wrap the model so that ``backward`` averages gradients over all ranks."""
        if self.world_size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def accumulate(self, model: torch.nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Exchange gradients once per step: with its last micro-batch."""
        if isinstance(model, torch.nn.parallel.DistributedDataParallel) and not last:
            return model.no_sync()
        return nullcontext()

    def sum(self, *values: float) -> list[float]:
        """Sum each value over all ranks."""
        if self.world_size == 1:
            return list(values)
        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(totals)
        result: list[float] = totals.tolist()
        return result

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        if self.world_size > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def usable(name: str | torch.device) -> torch.device:
    """The device of this name, or an error that lists the available ones."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        available = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        available += ["mps"] if torch.backends.mps.is_available() else []
        raise ArgumentError(
            f"device {str(name)!r} cannot be used here ({reason}); use {' or '.join(available)}"
        ) from error
    return device
