"""Graph files with lookups, made without the op library, and a way to run `recgraph`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import tensorflow as tf
from cli_graphs import add_lookup, base_graph
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from mx_rec.cli import main

tf1 = tf.compat.v1


@dataclass(frozen=True)
class Ended:
    """How a run of `recgraph` ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that a failed run writes to stderr."""
        assert "Traceback" not in self.err
        assert len(self.err.splitlines()) == 1, self.err
        assert self.err.startswith("recgraph: ")
        return self.err.strip()


@pytest.fixture
def recgraph(capsys):
    """Runs the command in this process."""

    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(ended.value.code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def train_graph() -> graph_pb2.GraphDef:
    """One lookup that can be moved."""
    graph_def = base_graph().as_graph_def()
    add_lookup(graph_def, "movie", "movie_ids")
    return graph_def


@pytest.fixture(scope="session")
def refused_graph(train_graph) -> graph_pb2.GraphDef:
    """One lookup that can be moved, and one whose ids come from no iterator."""
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(train_graph)
    add_lookup(graph_def, "noise", "random_ids")
    return graph_def


@pytest.fixture(scope="session")
def plain_graph() -> graph_pb2.GraphDef:
    """A graph without any lookup of ours."""
    return base_graph().as_graph_def()


@pytest.fixture(scope="session")
def train_meta_graph(train_graph) -> meta_graph_pb2.MetaGraphDef:
    """The training graph as an exported MetaGraphDef, whose collections name a node that would be pruned."""
    graph = base_graph()
    with graph.as_default():
        tf1.add_to_collection("KEPT", graph.get_tensor_by_name("movie_ids:0"))
        meta_graph = tf1.train.export_meta_graph(graph=graph, saver_def=tf1.train.Saver().as_saver_def())
    add_lookup(meta_graph.graph_def, "movie", "movie_ids")
    return meta_graph


@pytest.fixture
def write(tmp_path):
    """Writes a message to a file of the temporary directory."""

    def write(name: str, message) -> Path:
        path = tmp_path / name
        if name.endswith("txt"):
            path.write_text(text_format.MessageToString(message))
        else:
            path.write_bytes(message if isinstance(message, bytes) else message.SerializeToString())
        return path

    return write
