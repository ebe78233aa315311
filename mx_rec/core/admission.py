"""What lookups say of admission and eviction: checked where the graph is built, and told to their table."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Optional

from mx_rec import ops
from mx_rec.constants.constants import ATTR_COEFFICIENTS, COMBINE_FAAE_ENV, MAX_INT32
from mx_rec.graph.attrs import AttrValue, attr_bool, attr_bytes, attr_int, attr_ints
from mx_rec.tf_compat import set_attr
from mx_rec.util.validate import check_optional_int

if TYPE_CHECKING:
    from mx_rec.core.graph_state import GraphState
    from mx_rec.core.table import EmbeddingTable

_OFF = -1
_CONFIG_KEYS = ("access_threshold", "eviction_threshold", "faae_coefficient")
_SHARED_COUNTS = "mx_rec_combined_counts"


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

    @property
    def thresholds(self) -> tuple[Optional[int], Optional[int]]:
        """What all training lookups of a table must have in common."""
        return self.access_threshold, self.eviction_threshold


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
        TypeError, ValueError: the dict is not as said above, or differs from the specification.
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


def tell_table(state: GraphState, table: EmbeddingTable, owner: str, config: AdmissionConfig) -> None:
    """Lets a table know the thresholds of a training lookup. The first one decides; the others must agree.

    Raises:
        ValueError: another training lookup of the table has other thresholds, or the environment says of
            USE_COMBINE_FAAE what is neither 0 nor 1.
        EnvironmentError: a session has run the graph, so that the table exists as it is.
    """
    _tell_coefficient(state, table, config.faae_coefficient)
    known = state.admission.get(table.table_name)
    if known is not None:
        if known[1].thresholds != config.thresholds:
            raise ValueError(
                f"{owner}: access_threshold and eviction_threshold must be those of {known[0]}, since a key has one "
                f"count in its table: expected {known[1].thresholds}, got {config.thresholds}"
            )
        return
    attrs = _table_attrs(config)
    if attrs and ops.graph_was_run(state.token):
        raise EnvironmentError(
            f"{owner}: a session has already run the graph, so its thresholds would not reach the table; look up "
            "with thresholds before the first session.run"
        )
    state.admission[table.table_name] = (owner, config)
    for name, value in attrs.items():
        set_attr(table.handle.op, name, value)
    if config.eviction_threshold is not None:
        table.make_evict_op()


def _tell_coefficient(state: GraphState, table: EmbeddingTable, coefficient: int) -> None:
    """Has the table save what its lookups count; they work without it, so what comes too late is left out."""
    known = state.coefficients.setdefault(table.table_name, set())
    known.add(coefficient)
    if known != {1} and not ops.graph_was_run(state.token):
        set_attr(table.handle.op, ATTR_COEFFICIENTS, attr_ints(sorted(known)))


def admits(state: GraphState, table: EmbeddingTable) -> bool:
    """Whether keys of the table may have no row although they are trained."""
    known = state.admission.get(table.table_name)
    return known is not None and known[1].access_threshold is not None


def evicts_by_time(state: GraphState, table: EmbeddingTable) -> bool:
    """Whether the table has an eviction_threshold."""
    known = state.admission.get(table.table_name)
    return known is not None and known[1].eviction_threshold is not None


def may_evict(state: GraphState, table: EmbeddingTable) -> bool:
    """Whether rows of the table may be used for one key after another."""
    return table.max_keys > 0 or evicts_by_time(state, table)


def _table_attrs(config: AdmissionConfig) -> dict[str, AttrValue]:
    attrs: dict[str, AttrValue] = {}
    if config.access_threshold is not None:
        attrs["access_threshold"] = attr_int(config.access_threshold)
        if _combines():
            attrs["shared_counts"] = attr_bytes(_SHARED_COUNTS)
    if config.eviction_threshold is not None:
        attrs["eviction_threshold"] = attr_int(config.eviction_threshold)
        attrs["record_times"] = attr_bool(True)
        attrs["use_lookup_clock"] = attr_bool(False)
    return attrs


def _combines() -> bool:
    value = os.environ.get(COMBINE_FAAE_ENV, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{COMBINE_FAAE_ENV} must be 0 or 1 in the environment, got {value!r}")
    return value == "1"
