"""Ranks of this process. Unlike those of `mx_rec.util.initialize` these may be called before `init`."""

from __future__ import annotations

import os
from collections.abc import Callable

from mx_rec.util import initialize

__all__ = ["get_device_id", "get_local_rank_size", "get_rank_id", "get_rank_size"]


def get_rank_id() -> int:
    """Rank of this process: `init(rank_id=)`, else the MPI environment, else 0."""
    return _answer(initialize.get_rank_id, "OMPI_COMM_WORLD_RANK", 0)


def get_rank_size() -> int:
    """Number of processes: `init(rank_size=)`, else the MPI environment, else 1."""
    return _answer(initialize.get_rank_size, "OMPI_COMM_WORLD_SIZE", 1)


def get_local_rank_size() -> int:
    """Number of processes on this machine: the MPI environment, else `get_rank_size()`."""
    return _answer(initialize.get_local_rank_size, "OMPI_COMM_WORLD_LOCAL_SIZE", get_rank_size())


def get_device_id() -> int:
    """Number of this process among those of this machine: the MPI environment, else `get_rank_id()`."""
    return _answer(initialize.get_device_id, "OMPI_COMM_WORLD_LOCAL_RANK", get_rank_id())


def _answer(after_init: Callable[[], int], variable: str, default: int) -> int:
    try:
        return after_init()
    except OSError:  # before init
        return int(os.environ.get(variable, default))
