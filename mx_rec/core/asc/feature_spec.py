"""`FeatureSpec`: which part of a batch is looked up in which table."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Union

from mx_rec.constants.constants import MAX_INT32
from mx_rec.core.admission import AdmissionConfig, check_admission
from mx_rec.util.validate import check_bool, check_int, check_optional_int, check_string

MAX_INDEX_KEY = 255
_MAX_NAME = 255


@dataclasses.dataclass(frozen=True, init=False)
class FeatureSpec:
    """One feature of a dataset. Immutable, so one specification may serve any number of lookups.

    Attributes:
        name: of the feature.
        index_key: where it stands in a batch; see `mx_rec.core.asc.batch.component`.
        table_name: of its table.
        access_threshold: as given; see `AdmissionConfig`.
        eviction_threshold: as given, seconds.
        is_timestamp: whether it is the time of the batch and no feature.
        batch_size: as given.
        faae_coefficient: what an occurrence counts for admission.
        admission: the thresholds, checked.
    """

    name: str
    index_key: Union[int, str]
    table_name: str
    access_threshold: Optional[int]
    eviction_threshold: Optional[int]
    is_timestamp: Optional[bool]
    batch_size: Optional[int]
    faae_coefficient: int
    admission: AdmissionConfig = dataclasses.field(repr=False)

    def __init__(
        self,
        name: str,
        index_key: Optional[Union[int, str]] = None,
        table_name: Optional[str] = None,
        access_threshold: Optional[int] = None,
        eviction_threshold: Optional[int] = None,
        is_timestamp: Optional[bool] = None,
        batch_size: Optional[int] = None,
        faae_coefficient: Optional[int] = 1,
        feat_count: Optional[int] = None,
    ) -> None:
        """Checks and keeps the description.

        Args:
            name: 1..255 characters.
            index_key: key of a dict batch, 1..255 characters, or place in a batch, 0..255; default `name`.
            table_name: 1..255 characters; default `name`.
            access_threshold: -1..2147483647, occurrences; None and -1 are "off".
            eviction_threshold: -1..2147483647, seconds; None and -1 are "off". Needs no `access_threshold`.
            is_timestamp: True for the time of the batch in seconds, an integer scalar that no table is asked for, or
                one for each sample.
            batch_size: 1..2147483647; accepted, the size is taken from the data.
            faae_coefficient: 1..2147483647; None is 1.
            feat_count: older spelling, 1..2147483647; accepted, the number of ids is taken from the data.

        Raises:
            TypeError, ValueError: a parameter is not as said above; the message names parameter, range and value,
                for thresholds the feature and its table too.
        """
        check_string("name", name, 1, _MAX_NAME)
        owner = f"FeatureSpec {name!r}"
        place = _check_index_key(f"{owner}: index_key", name if index_key is None else index_key)
        table = check_string(f"{owner}: table_name", name if table_name is None else table_name, 1, _MAX_NAME)
        admission = check_admission(
            f"{owner} of table {table!r}", access_threshold, eviction_threshold, faae_coefficient
        )
        if is_timestamp is not None:
            check_bool(f"{owner}: is_timestamp", is_timestamp)
        if is_timestamp and admission != AdmissionConfig():
            raise ValueError(
                f"{owner}: a timestamp is no feature, so it takes no access_threshold, eviction_threshold or "
                f"faae_coefficient; got {access_threshold}, {eviction_threshold} and {faae_coefficient}"
            )
        check_optional_int(f"{owner}: batch_size", batch_size, 1, MAX_INT32)
        check_optional_int(f"{owner}: feat_count", feat_count, 1, MAX_INT32)
        values: dict[str, Any] = {
            "name": name,
            "index_key": place,
            "table_name": table,
            "access_threshold": access_threshold,
            "eviction_threshold": eviction_threshold,
            "is_timestamp": is_timestamp,
            "batch_size": batch_size,
            "faae_coefficient": admission.faae_coefficient,
            "admission": admission,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)


def _check_index_key(parameter: str, value: Any) -> Union[int, str]:
    if isinstance(value, str):
        return check_string(parameter, value, 1, _MAX_NAME)
    return check_int(f"{parameter}, if not a string,", value, 0, MAX_INDEX_KEY)
