"""Runs a graph and its rewrite from the same beginning."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tf2_models import ROWS, WORDS

from mx_rec import ops
from mx_rec.passes import PassManager, PipelineOptions, PipelineResult, default_pipeline
from mx_rec.passes.convert_static_tables import ConvertStaticTables
from mx_rec.passes.static_lookups.plans import TableChoice

tf1 = tf.compat.v1


def session_config(*, grappler: bool = True) -> Any:
    """Without Grappler: it moves factors from one side of a product to the other, which rounds otherwise."""
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    if not grappler:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
        off = rewriter_config_pb2.RewriterConfig.OFF
        config.graph_options.rewrite_options.constant_folding = off
    return config


def convert(graph_def: Any, *patterns: str, whole: bool = False, **options: Any) -> PipelineResult:
    """The graph with tables; `whole`: after all passes."""
    choices = tuple(TableChoice(pattern, **options) for pattern in patterns or ("*",))
    passes = default_pipeline(PipelineOptions(static_tables=choices)) if whole else [ConvertStaticTables(choices)]
    return PassManager(passes).run(graph_def)


def losses(graph_def: Any, fetches: Iterable[str] = ("loss:0", "train"), *, steps: int, grappler: bool = False) -> Any:
    """The first fetch at each step, from the beginning."""
    ops.load_library()
    with tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")
        with tf1.Session(config=session_config(grappler=grappler)) as session:
            session.run("begin")
            return np.array([session.run(list(fetches))[0] for _ in range(steps)])


def served(directory: Path, signature: str = "serving_default", *, steps: int = 3) -> list[dict[str, np.ndarray]]:
    """What a signature of a model of `tf2_models` gives, step by step, in a Session as TensorFlow Serving has one."""
    ops.load_library()
    found = []
    with tf.Graph().as_default(), tf1.Session() as session:
        meta_graph = tf1.saved_model.load(session, ["serve"], str(directory))
        entry = meta_graph.signature_def[signature]
        for step in range(steps):
            ids = (np.arange(6).reshape(2, 3) * (7 + step)) % ROWS
            values = {tf.int64.as_datatype_enum: ids, tf.string.as_datatype_enum: np.array([*WORDS, "?"])[ids % 5]}
            feed = {info.name: values[info.dtype] for info in entry.inputs.values()}
            found.append(session.run({name: info.name for name, info in entry.outputs.items()}, feed))
    return found


def from_text(text: str) -> Any:
    return text_format.Parse(text, tf1.GraphDef())
