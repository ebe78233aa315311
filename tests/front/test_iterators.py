"""Every kind of iterator, every way from a batch to keys: what moves, what stays, and that nothing else changes.

docs/iterators.md shows the rows as a table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import iterator_scripts as scripts
import pytest
import tensorflow as tf

from mx_rec.constants.constants import ASCEND_CUTTING_POINT_INITIALIZER
from mx_rec.core.embedding import sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.util.initialize import get_initializer, get_target_batch, init, terminate_config_initializer

tf1 = tf.compat.v1
DOC = Path(__file__).resolve().parents[2] / "docs" / "iterators.md"
MOVES, STAYS, ALL_STAY = "moves", "stays", "all stay"


@pytest.fixture(autouse=True)
def clean():
    tf1.disable_eager_execution()
    terminate_config_initializer()
    yield
    terminate_config_initializer()


# --- Monitored sessions ---


class _Loop(tf1.train.SessionRunHook):
    """Starts training when the session is made, and reads the tables before it is closed."""

    def __init__(self, script, *, starts):
        self._script = script
        self._starts = starts
        self.contents = None

    def after_create_session(self, session, coord):
        if self._starts:
            session.run(self._script.draws.starts[True])

    def end(self, session):
        self.contents = session.run(self._script.contents)


def _run_monitored(script, *, by_scaffold):
    starts = list(script.draws.starts.values())
    local = tf.group(tf1.tables_initializer(), tf1.local_variables_initializer(), *(starts if by_scaffold else []))
    hook = _Loop(script, starts=bool(starts) and not by_scaffold)
    config = scripts.NO_HANG
    with tf1.train.MonitoredTrainingSession(
        scaffold=tf1.train.Scaffold(local_init_op=local), hooks=[hook], config=config, log_step_count_steps=None
    ) as session:
        runner = scripts.Runner(script, session.run)
        steps = list(scripts.plan(script))
        for what, side in steps[1:] if starts else steps:  # the hook or the scaffold has made the first start
            runner.do(what, side)
        assert script.step.graph.finalized
    return runner.values, hook.contents


SESSIONS: dict[str, Callable] = {
    "": scripts.run_in_session,
    "monitored_hook": lambda script: _run_monitored(script, by_scaffold=False),
    "monitored_scaffold": lambda script: _run_monitored(script, by_scaffold=True),
}


# --- The matrix ---


@dataclass(frozen=True)
class Row:
    """A script and what the rewrite makes of it.

    Attributes:
        iterator, keys: of `iterator_scripts`.
        result: all lookups move; or those of table "keys" stay; or all stay.
        why: what the refusals of those that stay say; a regular expression.
        is_fixed: tables of fixed capacity.
        session: of `SESSIONS`.
        prefetch: batches prepared ahead.
    """

    iterator: str
    keys: str
    result: str = MOVES
    why: str = ""
    is_fixed: bool = False
    session: str = ""
    prefetch: int = 1

    @property
    def name(self) -> str:
        return "-".join(filter(None, [self.iterator, self.keys, "fixed" * self.is_fixed, self.session]))


_LOOP_V1 = "op 'Exit' is a loop of TensorFlow 1"
_BRANCH_V1 = "only one branch of a conditional of TensorFlow 1"
_FED = "^fed: is fed at the step"
_RANDOM = "draws random numbers"

ROWS = [
    # Each kind of iterator.
    Row("initializable", "arithmetic"),
    Row("one_shot", "arithmetic"),
    Row("from_structure", "arithmetic", prefetch=5),
    Row("feedable", "arithmetic"),
    Row("feedable_one_shot", "arithmetic"),
    Row("feedable_structure", "arithmetic", prefetch=5),
    Row("feedable_two_handles", "arithmetic"),
    Row("feedable_named_handle", "arithmetic"),
    Row("feedable_and_direct", "arithmetic"),
    Row("feedable_other_shapes", "arithmetic"),
    Row("feedable_beside_other", "arithmetic"),
    Row("feedable_direct_conflict", "arithmetic", ALL_STAY, "may draw the same batches as .* but other keys are made"),
    Row("feedable_constant", "arithmetic", ALL_STAY, "op 'Const' gives the handle .* feed a placeholder"),
    Row("feedable_without_handle", "arithmetic", ALL_STAY, "no iterator of the graph gives a handle"),
    # Sessions.
    Row("initializable", "arithmetic", session="monitored_hook"),
    Row("initializable", "vocabulary_table", session="monitored_scaffold"),
    Row("one_shot", "arithmetic", session="monitored_hook"),
    Row("from_structure", "arithmetic", session="monitored_hook"),
    Row("feedable", "arithmetic", session="monitored_hook"),
    Row("feedable", "static_table", session="monitored_scaffold"),
    # Each way to the keys.
    *(
        Row("initializable", keys)
        for keys in (
            "identity",
            "cast",
            "string_hash",
            "string_to_number",
            "bucketize",
            "static_table",
            "vocabulary_table",
            "where",
            "concat",
            "cross",
            "sparse_cross",
            "parse_example",
            "assert",
            "shared",
            "in_model",
            "tuple",
            "nested",
            "dense_beside_sparse",
            "sparse_values",
            "sparse_to_dense",
            "ragged_flat_values",
            "ragged_to_tensor",
            "cond_v1",
            "cond_v2",
            "while_v2",
        )
    ),
    # By handle, the batch is another tensor of another op: what depends on structure and captured state again.
    *(
        Row("feedable", keys)
        for keys in ("vocabulary_table", "shared", "in_model", "nested", "sparse_values", "ragged_to_tensor", "cond_v2")
    ),
    Row("one_shot", "vocabulary_table"),
    Row("feedable_one_shot", "static_table"),
    Row("from_structure", "sparse_to_dense"),
    # What stays, alone.
    Row("initializable", "while_v1", STAYS, _LOOP_V1),
    Row("initializable", "branch_v1", STAYS, _BRANCH_V1),
    Row("initializable", "placeholder", STAYS, _FED),
    Row("initializable", "variable", STAYS, "reads variable 'offset'"),
    Row("initializable", "mutable_table", STAYS, "a table that may change between steps"),
    Row("initializable", "random", STAYS, _RANDOM),
    Row("initializable", "random_in_model", STAYS, _RANDOM),
    Row("initializable", "python", STAYS, "op 'PyFunc' has state or side effects"),
    Row("initializable", "two_batches", STAYS, "its ids come from several batches"),
    Row("initializable", "constant", STAYS, "its ids do not come from an iterator"),
    Row("feedable", "while_v1", STAYS, _LOOP_V1),
    Row("feedable", "placeholder", STAYS, _FED),
    Row("feedable", "random_in_model", STAYS, _RANDOM),
    Row("one_shot", "variable", STAYS, "reads variable 'offset'"),
    # Fixed capacity.
    Row("initializable", "string_hash", is_fixed=True),
    Row("feedable", "arithmetic", is_fixed=True),
    Row("feedable_one_shot", "shared", is_fixed=True),
    Row("feedable", "placeholder", STAYS, _FED, is_fixed=True),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row):
    options = {"is_fixed": row.is_fixed, "prefetch": row.prefetch, "run_session": SESSIONS[row.session]}
    plain = scripts.run(row.iterator, row.keys, is_rewritten=False, **options)
    rewritten = scripts.run(row.iterator, row.keys, is_rewritten=True, **options)
    scripts.assert_same(plain, rewritten)
    plain_lookups, key_lookups = ({name for name in rewritten.lookups if name.startswith(p)} for p in ("plain", "keys"))
    stay = {MOVES: set(), STAYS: key_lookups, ALL_STAY: plain_lookups | key_lookups}[row.result]
    assert rewritten.moved == rewritten.lookups - stay
    assert len(rewritten.refusals) == len(stay)
    for name in stay:
        (refusal,) = [text for text in rewritten.refusals if f"(lookup {name!r} stays at the step)" in text]
        assert re.search(row.why, refusal), refusal
