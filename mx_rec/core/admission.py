"""What a lookup says of admission and eviction: checked where the graph is built, kept with the lookup."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from mx_rec.constants.constants import MAX_INT32
from mx_rec.util.validate import check_optional_int

_OFF = -1
_CONFIG_KEYS = ("access_threshold", "eviction_threshold", "faae_coefficient")


@dataclasses.dataclass(frozen=True)
class AdmissionConfig:
    """Thresholds of one feature.

    Attributes:
        access_threshold: count at which a key is admitted; 0: admission is on, but counts stay; None: off.
        eviction_threshold: seconds after which an unseen key may go; None: off.
        faae_coefficient: what an occurrence counts.
    """

    access_threshold: Optional[int] = None
    eviction_threshold: Optional[int] = None
    faae_coefficient: int = 1


def check_admission(
    owner: str, access_threshold: Any = None, eviction_threshold: Any = None, faae_coefficient: Any = None
) -> AdmissionConfig:
    """The thresholds as numbers; each is judged on its own, so eviction needs no admission.

    Args:
        owner: the feature and its table, for messages.
        access_threshold: -1..2147483647; None and -1 are "off".
        eviction_threshold: seconds, -1..2147483647; None and -1 are "off".
        faae_coefficient: 1..2147483647; None is 1.

    Raises:
        TypeError, ValueError: one of them is not as said above; the message names owner, range and value.
    """
    access = check_optional_int(f"{owner}: access_threshold", access_threshold, _OFF, MAX_INT32)
    eviction = check_optional_int(f"{owner}: eviction_threshold", eviction_threshold, _OFF, MAX_INT32)
    coefficient = check_optional_int(f"{owner}: faae_coefficient", faae_coefficient, 1, MAX_INT32)
    return AdmissionConfig(
        access_threshold=None if access == _OFF else access,
        eviction_threshold=None if eviction == _OFF else eviction,
        faae_coefficient=1 if coefficient is None else coefficient,
    )


def admission_of_lookup(
    owner: str, of_feature: Optional[AdmissionConfig], access_and_evict_config: Any
) -> AdmissionConfig:
    """What holds for a lookup, from its feature specification or from the dict given to `sparse_lookup`.

    Args:
        owner: the lookup or feature and its table, for messages.
        of_feature: of the lookup's specification; None if it was called with a tensor.
        access_and_evict_config: dict of `access_threshold`, `eviction_threshold`, `faae_coefficient`, or None.

    Raises:
        TypeError, ValueError: the dict is not as said above, differs from the specification, or something would
            be switched on: admission and eviction are not available yet.
    """
    config = of_feature or AdmissionConfig()
    if access_and_evict_config is not None:
        given = _from_dict(owner, access_and_evict_config)
        if of_feature is not None and given != of_feature:
            raise ValueError(
                f"{owner}: access_and_evict_config says {given}, but the FeatureSpec says {of_feature}; "
                "give the thresholds to the FeatureSpec alone"
            )
        config = given
    for name in _CONFIG_KEYS[:2]:
        if getattr(config, name) is not None:
            raise ValueError(
                f"{owner}: {name} must be None or -1, got {getattr(config, name)}: "
                "admission and eviction are not available yet"
            )
    return config


def _from_dict(owner: str, config: Any) -> AdmissionConfig:
    if not isinstance(config, dict):
        raise TypeError(f"{owner}: access_and_evict_config must be a dict or None, got {type(config).__name__}")
    unknown = [key for key in config if key not in _CONFIG_KEYS]
    if unknown:
        raise ValueError(
            f"{owner}: access_and_evict_config has {', '.join(map(repr, unknown))}; "
            f"it may have {', '.join(map(repr, _CONFIG_KEYS))}"
        )
    return check_admission(owner, **config)
