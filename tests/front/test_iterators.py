"""Every kind of iterator, every way from a batch to keys: what moves, what stays, and that nothing else changes.

docs/iterators.md shows the rows as a table.
"""

from __future__ import annotations

import gc
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


@pytest.fixture(autouse=True, scope="module")
def frozen_heap():
    """Each graph asks the collector for the open sessions; what TensorFlow made when it was loaded is none."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


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
    Row("feedable_two_handles", "shared"),
    Row("feedable_two_handles", "shared", is_fixed=True),
    Row("feedable_and_direct", "shared"),
    Row("feedable_two_handles", "vocabulary_table"),
    Row("feedable_two_handles", "table_per_side", ALL_STAY, "but other keys are made of them"),
    Row("feedable_two_handles", "cond_v2", ALL_STAY, "but other keys are made of them"),
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
    # What the dataset does before.
    Row("initializable", "data_shuffled", prefetch=5),
    Row("feedable", "data_shuffled"),
    Row("initializable", "data_random", prefetch=3),
    Row("initializable", "data_reads_variable", ALL_STAY, "reads variable 'offset', whose value ahead"),
    Row("feedable", "data_reads_variable", ALL_STAY, "reads variable 'offset', whose value ahead"),
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


# --- What a script reaches after the rewrite ---


def _rewritten(iterator, keys="arithmetic"):
    init(use_dynamic_expansion=True)
    script = scripts.build(iterator, keys)
    return script, modify_graph_and_start_emb_cache()


def _session(script):
    session = tf1.Session(config=scripts.NO_HANG)
    session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
    return session, scripts.Runner(script, session.run)


@pytest.mark.parametrize("iterator", ["feedable", "feedable_two_handles", "feedable_structure", "feedable_and_direct"])
def test_initializers_of_the_two_sides_start_the_first_and_the_second_source(iterator):
    with tf.Graph().as_default() as graph:
        script, _ = _rewritten(iterator)
        assert [get_initializer(side) for side in (True, False)] == [
            script.draws.starts[side] for side in (True, False)
        ]
        assert set(graph.get_collection(ASCEND_CUTTING_POINT_INITIALIZER)) == set(script.draws.starts.values())


def test_a_one_shot_source_needs_no_initializer():
    with tf.Graph().as_default():
        script, _ = _rewritten("feedable_one_shot")
        assert get_initializer(True) == script.draws.starts[True]
        session, runner = _session(script)
        with session:
            session.run(get_initializer(True))
            runner.do("step", True)
            session.run(get_initializer(False))  # does nothing; above all, it does not start the training again
            runner.do("step", True)
            batch = session.run(get_target_batch(True, script.draws.batches[True])["y"], _feed(runner, script, True))
        assert batch.tolist() == scripts.column(0, "y")[2 * scripts.BATCH : 3 * scripts.BATCH]


def _feed(runner, script, side):
    placeholder, handle = script.draws.handles[side]
    return {placeholder: runner.run(handle)}


def test_target_batch_is_drawn_by_the_handle_that_is_fed():
    with tf.Graph().as_default():
        script, _ = _rewritten("feedable")
        target = get_target_batch(True, script.draws.batches[True])
        assert target == get_target_batch(False, script.draws.batches[False])
        assert set(target) == set(script.draws.batches[True])
        session, runner = _session(script)
        with session:
            session.run(list(script.draws.starts.values()))
            for side, seed in ((True, 0), (False, 1), (True, 0)):
                drawn = [session.run(target["y"], _feed(runner, script, side)) for _ in range(2)]
                start = 0 if runner.values == [] or not side else 2
                expected = scripts.column(seed, "y")[start * scripts.BATCH : (start + 2) * scripts.BATCH]
                assert [value for part in drawn for value in part.tolist()] == expected
                runner.values.append(None)


@pytest.mark.parametrize("iterator", ["feedable", "feedable_and_direct"])
def test_old_batches_give_a_clear_error(iterator):
    with tf.Graph().as_default():
        script, _ = _rewritten(iterator)
        session, runner = _session(script)
        with session:
            session.run(list(script.draws.starts.values()))
            for side in (True, False):
                feed = _feed(runner, script, side) if side in script.draws.handles else {}
                with pytest.raises(tf.errors.InvalidArgumentError, match="get_target_batch"):
                    session.run(script.draws.batches[side]["y"], feed)


def test_a_handle_from_elsewhere_is_an_error_and_no_hang():
    """Of an iterator that is made after the rewrite: it has the elements of before."""
    with tf.Graph().as_default():
        script, _ = _rewritten("feedable")
        late = tf1.data.make_initializable_iterator(scripts.columns(0))
        session, runner = _session(script)
        with session:
            session.run(late.initializer)
            placeholder, _ = script.draws.handles[True]
            with pytest.raises(tf.errors.InvalidArgumentError, match="components|types"):
                session.run(script.fetches(True), {placeholder: session.run(late.string_handle())})
            session.run(script.draws.starts[True])
            runner.do("step", True)  # the right handle goes on working


def test_rows_are_reserved_only_where_one_dataset_feeds_training_alone():
    init(use_dynamic_expansion=True)

    def note(eval_lookup, sources):
        with tf.Graph().as_default():
            for seed in range(sources):
                tf1.data.make_initializable_iterator(scripts.columns(seed))
            batch = scripts.by_handle(tf1.placeholder(tf.string, []), scripts.columns(0)).get_next()
            table = scripts.create_table(tf.int64, 2, "t", tf1.ones_initializer())
            rows = sparse_lookup(table, batch["user"])
            if eval_lookup:
                sparse_lookup(table, batch["user"], is_train=False)
            scripts.gradient_descent_by_addr.create_hash_optimizer_by_addr(0.1).minimize(tf.reduce_sum(rows))
            (hoist,) = [report for report in modify_graph_and_start_emb_cache() if report.name == "hoist_lookups"]
            return hoist.notes[0]

    assert "reserves rows" in note(eval_lookup=False, sources=1)
    assert "reserves no rows" in note(eval_lookup=True, sources=1)
    assert "reserves no rows" in note(eval_lookup=False, sources=2)


# --- Several graphs ---


@pytest.mark.parametrize(
    "kinds", [("feedable", "initializable"), ("from_structure", "feedable"), ("one_shot", "one_shot")]
)
def test_several_graphs_in_one_process(kinds):
    """Built in turn, rewritten while none of them is the default graph, run in turns."""

    def outcomes(is_rewritten):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        graphs, built, sessions = [tf.Graph() for _ in kinds], [], []
        for graph, kind, keys in zip(graphs, kinds, ("vocabulary_table", "arithmetic")):
            with graph.as_default():
                built.append(scripts.build(kind, keys))
        if is_rewritten:
            for graph in reversed(graphs):
                reports = modify_graph_and_start_emb_cache(full_graph=graph)
                assert not [refusal for report in reports for refusal in report.refusals]
        for graph in graphs:
            with graph.as_default():
                sessions.append(tf1.Session(config=scripts.NO_HANG))
                sessions[-1].run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        runners = [scripts.Runner(script, session.run) for script, session in zip(built, sessions)]
        plans = [list(scripts.plan(script)) for script in built]
        for index in range(max(map(len, plans))):
            for runner, steps in zip(runners, plans):
                if index < len(steps):
                    runner.do(*steps[index])
        results = []
        for session, script, runner in zip(sessions, built, runners):
            results.append(scripts.Outcome(runner.values, session.run(script.contents), [], set(), set()))
            session.close()
        return results

    for plain, rewritten in zip(outcomes(False), outcomes(True)):
        scripts.assert_same(plain, rewritten)


# --- Lookups in bodies ---


def _with_body(body, look_up, user):
    if body == "cond":
        return tf.cond(tf.reduce_sum(user) > -100, lambda: look_up(user), lambda: 0.0)
    return tf1.while_loop(lambda i, _: i < 2, lambda i, total: (i + 1, total + look_up(user)), [0, 0.0])[1]


def _run_body(body, is_rewritten):
    """Losses and refusals of a script that trains one lookup outside and evaluates another in a body."""
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        table = scripts.create_table(tf.int64, 2, "t", tf1.ones_initializer())
        iterator = tf1.data.make_initializable_iterator(scripts.columns(0))
        user = iterator.get_next()["user"]
        loss = tf.reduce_sum(tf.square(sparse_lookup(table, user)))
        inside = _with_body(
            body, lambda ids: tf.reduce_sum(sparse_lookup(table, ids * 2, is_train=False, name="inside")), user
        )
        step = scripts.gradient_descent_by_addr.create_hash_optimizer_by_addr(0.1).minimize(loss)
        reports = modify_graph_and_start_emb_cache() if is_rewritten else ()
        with tf1.Session(config=scripts.NO_HANG) as session:
            session.run(iterator.initializer)
            values = [(session.run([loss, step])[0], session.run(inside)) for _ in range(2)]
    return values, [str(refusal) for report in reports for refusal in report.refusals]


@pytest.mark.parametrize("body", ["cond", "while_loop"])
def test_lookup_in_a_body_of_tensorflow_1_stays(body):
    was_v2 = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    try:
        plain, rewritten = _run_body(body, False), _run_body(body, True)
    finally:
        (tf1.enable_control_flow_v2 if was_v2 else tf1.disable_control_flow_v2)()
    assert plain[0] == rewritten[0]
    (refusal,) = rewritten[1]
    assert "(lookup 'inside' stays at the step)" in refusal


@pytest.mark.parametrize("body", ["cond", "while_loop"])
def test_lookup_in_a_body_of_tensorflow_2_is_refused_when_it_is_built(body):
    was_v2 = tf1.control_flow_v2_enabled()
    tf1.enable_control_flow_v2()
    try:
        with pytest.raises(ValueError, match="not in the body of a tf.cond or tf.while_loop; look up outside"):
            _run_body(body, False)
    finally:
        (tf1.enable_control_flow_v2 if was_v2 else tf1.disable_control_flow_v2)()


# --- The page ---


def _page_rows():
    """(iterator, keys, result, test) of each line of the page's tables."""
    for line in DOC.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[4].startswith("`test_"):
            yield cells[0], cells[1], cells[2], cells[4].strip("`")


def _tests():
    """The tests of this module by name, those of the matrix one by one."""
    others = {name for name in globals() if name.startswith("test_")} - {"test_row", "test_page_and_tests_agree"}
    return others, {f"test_row[{row.name}]": row for row in ROWS}


def test_page_and_tests_agree():
    others, rows = _tests()
    page = list(_page_rows())
    named = [test for *_, test in page]
    assert len(named) == len(set(named)) and len(rows) == len(ROWS)
    assert set(rows) <= set(named), f"not on the page: {sorted(set(rows) - set(named))}"
    assert set(named) <= set(rows) | others, f"no such test: {sorted(set(named) - set(rows) - others)}"
    for iterator, keys, result, test in page:
        if test in rows:
            row = rows[test]
            assert (f"`{row.iterator}`" in iterator) and (f"`{row.keys}`" in keys), test
            assert result == row.result, test
