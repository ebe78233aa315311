"""Ranks of this process, answered by mx_rec."""

from mx_rec.util.communication.hccl_ops import get_device_id, get_local_rank_size, get_rank_id, get_rank_size

__all__ = ["get_device_id", "get_local_rank_size", "get_rank_id", "get_rank_size"]
