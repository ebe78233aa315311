"""Where a feature stands in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import tensorflow as tf

_TIMES = (tf.int64, tf.int32)
_IDS = (*_TIMES, tf.float32, tf.float64)


def component(owner: str, batch: Any, index_key: Union[int, str]) -> Any:
    """The part of a batch that an index key names.

    A string is a key of the dict that the batch is (or a field of the named tuple). If the batch is nested, as
    `(features, labels)`, it is looked for level by level, and the first level that has it must have it once. An
    integer counts the parts of the outermost level: the items of a tuple or list, the values of a dict by
    sorted key, which is the order of tf.data. A tensor alone is part 0 of itself.

    Args:
        owner: the feature, for messages.
        batch: any structure of dicts, tuples and lists.
        index_key: see above.

    Raises:
        ValueError: the batch has no such part (the message lists what it has), or several.
    """
    if isinstance(index_key, int):
        parts = list(_parts(batch).values())
        if index_key >= len(parts):
            raise ValueError(
                f"{owner}: index_key must be less than {len(parts)}, the number of components of the batch, "
                f"got {index_key}"
            )
        return parts[index_key]
    level: dict[str, Any] = {"batch": batch}
    keys: dict[str, None] = {}
    while level:
        found = {path: _named(part)[index_key] for path, part in level.items() if index_key in _named(part)}
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            raise ValueError(
                f"{owner}: {index_key!r} is a key of {' and of '.join(found)}; pass the part of the batch that is meant"
            )
        keys.update((repr(key), None) for part in level.values() for key in _named(part))
        level = {
            f"{path}[{key!r}]": inner
            for path, part in level.items()
            for key, inner in _parts(part).items()
            if not tf.is_tensor(inner)
        }
    has = f"it has {', '.join(keys)}" if keys else "it has no keys, so index_key must be an integer"
    raise ValueError(f"{owner}: the batch has no key {index_key!r}; {has}")


def check_ids(owner: str, ids: Any) -> Any:
    """`ids` if it is a dense, sparse or ragged tensor of numbers that a lookup takes, else TypeError."""
    return _check_numbers(owner, ids, _IDS)


def check_timestamp(owner: str, time: Any) -> tf.Tensor:
    """`time` if it is an integer scalar, or a column with one time per sample; TypeError or ValueError otherwise."""
    _check_numbers(owner, time, _TIMES)
    if not isinstance(time, tf.Tensor):
        raise TypeError(f"{owner} is a timestamp, so it must be dense in the batch, got {type(time).__name__}")
    rank = time.shape.rank
    if rank is not None and (rank > 2 or (rank == 2 and time.shape[1] != 1)):
        raise ValueError(
            f"{owner} is a timestamp, so it must be a scalar or have one element per sample ([batch] or [batch, 1]), "
            f"got shape {time.shape}"
        )
    return time


def _check_numbers(owner: str, numbers: Any, dtypes: Sequence[tf.DType]) -> Any:
    names = [dtype.name for dtype in dtypes]
    expected = f"{', '.join(names[:-1])} or {names[-1]}"
    if not isinstance(numbers, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(f"{owner} must be a tensor of {expected} in the batch, got {type(numbers).__name__}")
    if numbers.dtype not in dtypes:
        raise TypeError(f"{owner} must be {expected} in the batch, got {numbers.dtype.name}")
    return numbers


def _named(batch: Any) -> Mapping[Any, Any]:
    if isinstance(batch, Mapping):
        return batch
    return {field: getattr(batch, field) for field in getattr(batch, "_fields", ())}


def _parts(batch: Any) -> dict[Any, Any]:
    """The parts of one level in the order of tf.data, by key."""
    if isinstance(batch, Mapping):
        return {key: batch[key] for key in sorted(batch)}
    if isinstance(batch, (list, tuple)):
        return dict(enumerate(batch))
    return {0: batch} if tf.is_tensor(batch) else {}
