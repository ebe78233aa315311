"""The function of FeatureSpec mode for `dataset.map`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional, Union

import tensorflow as tf

from mx_rec.constants.constants import MAX_INT32
from mx_rec.core import graph_state
from mx_rec.core.asc.batch import check_ids, check_timestamp, component
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.graph.modifier import DUMP_DIR
from mx_rec.tf_compat import outermost_graph
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger
from mx_rec.util.validate import check_bool, check_int, check_string

__all__ = [
    "FeatureSpec",
    "create_asc_insert_func_with_acg",
    "create_asc_insert_func_with_specs",
    "get_asc_insert_func",
]

InsertFunction = Callable[..., Any]
_OLDER_PARAMETERS = frozenset({"feature_numbers", "feature_counts"})


@tf.autograph.experimental.do_not_convert  # datasets may be made inside functions of datasets
def get_asc_insert_func(
    tgt_key_specs: Any = None,
    args_index_list: Optional[Sequence[int]] = None,
    table_names: Optional[Sequence[str]] = None,
    is_training: bool = True,
    dump_graph: bool = False,
    **kwargs: Any,
) -> InsertFunction:
    """A function for `dataset.map` that checks, where the graph is built, what the lookups will need.

    Give either `tgt_key_specs`, or `args_index_list` with `table_names`. The elements of the dataset pass through
    unchanged, but for an element that is one tensor: it becomes a tuple of one, as scripts expect. The keys are
    prepared ahead by `start_asc_pipeline`, which finds lookups by the graph and needs no mark in the dataset.

    Args:
        tgt_key_specs: a FeatureSpec or a list of them, found in the batch by `index_key`; or, for nested batches,
            a dict or list of such, of the batch's structure, each found in its part.
        args_index_list: components of the batch, in flat order (dicts by sorted key), that are ids.
        table_names: their tables.
        is_training: whether the dataset is for training.
        dump_graph: write the graph of the dataset function, up to here, to ./export_graph/pipeline_graph.pb.
        **kwargs: older spellings (`feature_numbers`) are ignored, others with a warning.

    Raises:
        EnvironmentError: before `init`, or two specifications are timestamps.
        RuntimeError: not exactly one of the two forms is given.
        TypeError, ValueError: a parameter is not as said above.

    The function itself raises TypeError or ValueError, from `dataset.map`, if the batch does not have a feature,
    a feature is no dense int32 or int64 tensor, or a timestamp is no integer scalar.
    """
    has_specs, has_indices, has_tables = (value is not None for value in (tgt_key_specs, args_index_list, table_names))
    if has_specs == (has_indices and has_tables) or has_indices != has_tables:
        given = [
            name
            for name, is_given in zip(
                ("tgt_key_specs", "args_index_list", "table_names"), (has_specs, has_indices, has_tables)
            )
            if is_given
        ]
        raise RuntimeError(
            "get_asc_insert_func takes either tgt_key_specs, or args_index_list and table_names, "
            f"got {' and '.join(given) or 'none of them'}"
        )
    options = {"is_training": is_training, "dump_graph": dump_graph, **kwargs}
    if has_specs:
        return create_asc_insert_func_with_specs(tgt_key_specs, **options)
    return create_asc_insert_func_with_acg(args_index_list, table_names, **options)


@tf.autograph.experimental.do_not_convert
def create_asc_insert_func_with_specs(
    tgt_key_specs: Any, is_training: bool = True, dump_graph: bool = False, **kwargs: Any
) -> InsertFunction:
    """The form of `get_asc_insert_func` with feature specifications; see there."""
    _check_options("create_asc_insert_func_with_specs", is_training, dump_graph, kwargs)
    specs = list(_flat_specs(tgt_key_specs))
    if not specs:
        raise ValueError("tgt_key_specs must have at least one FeatureSpec, got none")
    timestamps = [spec.name for spec in specs if spec.is_timestamp]
    if len(timestamps) > 1:
        raise EnvironmentError(
            f"tgt_key_specs must have at most one FeatureSpec with is_timestamp=True, got {len(timestamps)}: "
            f"{', '.join(map(repr, timestamps))}"
        )

    def check(batch: Any) -> Iterator[graph_state.PipelineFeature]:
        for spec, part in _pairs(tgt_key_specs, batch):
            owner = f"FeatureSpec {spec.name!r}"
            found = component(owner, part, spec.index_key)
            (check_timestamp if spec.is_timestamp else check_ids)(owner, found)
            table = None if spec.is_timestamp else spec.table_name
            yield graph_state.PipelineFeature(owner, table, is_training, spec)

    return _insert_function(check, dump_graph)


@tf.autograph.experimental.do_not_convert
def create_asc_insert_func_with_acg(
    args_index_list: Any, table_names: Any, is_training: bool = True, dump_graph: bool = False, **kwargs: Any
) -> InsertFunction:
    """The form of `get_asc_insert_func` with places and tables; see there."""
    _check_options("create_asc_insert_func_with_acg", is_training, dump_graph, kwargs)
    for name, values in (("args_index_list", args_index_list), ("table_names", table_names)):
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"{name} must be a list, got {values!r} of type {type(values).__name__}")
    if len(args_index_list) != len(table_names) or not table_names:
        raise ValueError(
            "args_index_list and table_names must have the same length, at least 1, "
            f"got {len(args_index_list)} and {len(table_names)}"
        )
    indices = [check_int("args_index_list", index, 0, MAX_INT32) for index in args_index_list]
    tables = [check_string("table_names", name, 1, 255) for name in table_names]

    def check(batch: Any) -> Iterator[graph_state.PipelineFeature]:
        flat = tf.nest.flatten(batch)
        for index, table in zip(indices, tables):
            owner = f"component {index} of the batch (ids of table {table!r})"
            if index >= len(flat):
                raise ValueError(
                    f"args_index_list must be less than {len(flat)}, the number of components of the batch, got {index}"
                )
            check_ids(owner, flat[index])
            yield graph_state.PipelineFeature(owner, table, is_training, None)

    return _insert_function(check, dump_graph)


def _insert_function(check: Callable[[Any], Iterator[graph_state.PipelineFeature]], dump_graph: bool) -> InsertFunction:
    @tf.autograph.experimental.do_not_convert
    def insert(*args: Any) -> Any:
        batch = args[0] if len(args) == 1 else args
        features = list(check(batch))
        graph = tf.compat.v1.get_default_graph()
        graph_state.state_of(outermost_graph(graph)).features.update(dict.fromkeys(features))
        if dump_graph:
            path = tf.io.write_graph(graph.as_graph_def(), DUMP_DIR, "pipeline_graph.pb", as_text=False)
            logger.info("dataset function written to %s", path)
        return args if tf.is_tensor(batch) else batch

    return insert


def _check_options(function: str, is_training: Any, dump_graph: Any, others: dict[str, Any]) -> None:
    ConfigInitializer.get_instance()
    check_bool("is_training", is_training)
    check_bool("dump_graph", dump_graph)
    unknown = sorted(set(others) - _OLDER_PARAMETERS)
    if unknown:
        logger.warning("%s ignores unknown parameters: %s", function, ", ".join(unknown))


def _flat_specs(specs: Any) -> Iterator[FeatureSpec]:
    if isinstance(specs, FeatureSpec):
        yield specs
    elif isinstance(specs, (dict, list, tuple)):
        for inner in specs.values() if isinstance(specs, dict) else specs:
            yield from _flat_specs(inner)
    else:
        raise TypeError(
            f"tgt_key_specs must be a FeatureSpec or a list of them, got {specs!r} of type {type(specs).__name__}"
        )


def _pairs(specs: Union[FeatureSpec, dict, Sequence], batch: Any) -> Iterator[tuple[FeatureSpec, Any]]:
    """Each specification with the part of the batch in which it is found."""
    if isinstance(specs, FeatureSpec):
        yield specs, batch
    elif isinstance(specs, dict):
        for key, inner in specs.items():
            yield from _pairs(inner, component(f"tgt_key_specs[{key!r}]", batch, key))
    elif all(isinstance(inner, FeatureSpec) for inner in specs):
        yield from ((spec, batch) for spec in specs)
    else:
        if not isinstance(batch, (list, tuple)) or len(batch) != len(specs):
            raise ValueError(
                f"tgt_key_specs is nested, so it must have the structure of the batch: got a list of {len(specs)} for "
                f"a batch that is a {type(batch).__name__}"
                + (f" of {len(batch)}" if isinstance(batch, (list, tuple)) else "")
            )
        for inner, part in zip(specs, batch):
            yield from _pairs(inner, part)
