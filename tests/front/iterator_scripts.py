"""Training scripts for tests: any kind of iterator with any way from a batch to its keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.graph.view import GraphView
from mx_rec.optimizers import gradient_descent_by_addr, lazy_adam
from mx_rec.passes import find_lookups
from mx_rec.passes.merge_lookups import merged_names
from mx_rec.util.initialize import init, terminate_config_initializer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1
DIM = 2
ROWS, BATCH = 18, 4  # the last batch is smaller
WORDS = [f"w{i}" for i in range(8)]


# --- Data ---


def _arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(seed)
    return {
        "user": rng.randint(-9, 9, (ROWS, 3)).astype(np.int64),
        "item": rng.randint(0, 12, ROWS).astype(np.int64),
        "word": rng.choice(WORDS, (ROWS, 2)).astype(bytes),
        "digits": rng.randint(0, 20, ROWS).astype(str).astype(bytes),
        "price": rng.uniform(0, 10, (ROWS, 2)).astype(np.float32),
        "y": rng.rand(ROWS).astype(np.float32),
    }


def column(seed: int, name: str) -> list:
    """All values of one component of `columns`."""
    return _arrays(seed)[name].tolist()


def columns(seed: int) -> Any:
    """Batches of a dict of dense components; the last batch is smaller."""
    return tf.data.Dataset.from_tensor_slices(_arrays(seed)).batch(BATCH)


def _mapped(function: Callable[[Any], Any]) -> Callable[[int], Any]:
    return lambda seed: columns(seed).map(function)


def _sparse_of(user: tf.Tensor) -> tf.SparseTensor:
    return tf.sparse.from_dense(tf.maximum(user, 0))


def _serialized(seed: int) -> Any:
    """Batches of tf.train.Example as strings."""
    rng = np.random.RandomState(seed)

    def example() -> bytes:
        many = rng.randint(0, 9, rng.randint(0, 4)).tolist()
        feature = {
            "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=many)),
            "item": tf.train.Feature(int64_list=tf.train.Int64List(value=[rng.randint(0, 9)])),
            "y": tf.train.Feature(float_list=tf.train.FloatList(value=[rng.rand()])),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    return tf.data.Dataset.from_tensor_slices([example() for _ in range(ROWS)]).batch(BATCH)


def _parsed(serialized: tf.Tensor) -> dict:
    spec = {
        "ids": tf.io.VarLenFeature(tf.int64),
        "item": tf.io.FixedLenFeature([], tf.int64),
        "y": tf.io.FixedLenFeature([], tf.float32),
    }
    return tf.io.parse_example(serialized, spec)


# --- From a batch to keys ---


@dataclasses.dataclass(frozen=True)
class Keys:
    """How a script comes from a batch to the keys of its first lookup.

    Attributes:
        keys: from the batch, int64. A list stands for several lookups.
        data: the dataset by seed.
        plain: (ids of the second lookup, labels) of a batch.
        feed: what a step feeds by placeholder name.
        is_in_model: whether the model reads the keys too.
        control_flow_v2: which control flow the script is built with; None: as it comes.
        ends: whether to go on until the data ends. The step that finds the end fails, and may or may not have done
            what does not need the batch, with and without the rewrite.
    """

    keys: Callable[[Any], Any]
    data: Callable[[int], Any] = columns
    plain: Callable[[Any], tuple] = lambda batch: (batch["item"], batch["y"])
    feed: Optional[dict[str, Any]] = None
    is_in_model: bool = False
    control_flow_v2: Optional[bool] = None
    ends: bool = True


def _table_of_words(oov_buckets: int = 0) -> Any:
    """One for the whole script."""
    made = tf1.get_collection_ref(f"words_{oov_buckets}")
    if not made:
        made.append(_new_table_of_words(oov_buckets))
    return made[0]


def _new_table_of_words(oov_buckets: int) -> Any:
    init_words = tf1.lookup.KeyValueTensorInitializer(WORDS[:5], list(range(5)), tf.string, tf.int64)
    if oov_buckets:
        return tf1.lookup.StaticVocabularyTable(init_words, oov_buckets)
    return tf1.lookup.StaticHashTable(init_words, -1)


def _conditional(batch: Any) -> tf.Tensor:
    user = batch["user"]
    return tf.cond(tf.reduce_sum(user) > 0, lambda: user * 2, lambda: user + 1)


def _loop(batch: Any) -> tf.Tensor:
    _, keys = tf1.while_loop(lambda i, _: i < 3, lambda i, keys: (i + 1, keys * 2 + 1), [0, batch["user"]])
    return keys


def _mutable_table(batch: Any) -> tf.Tensor:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1, name="mutable")
    return table.lookup(batch["user"]) + batch["user"]


def _offset(user: tf.Tensor) -> tf.Tensor:
    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
        offset = tf1.get_variable("offset", [], tf.int64, tf1.ones_initializer(), use_resource=True, trainable=False)
    return user + offset


def _noise(batch: Any) -> tf.Tensor:
    return batch["user"] + tf.random.uniform([], 0, 5, tf.int64, seed=4)


def _fed(batch: Any) -> tf.Tensor:
    try:
        fed = tf1.get_default_graph().get_tensor_by_name("fed:0")
    except KeyError:
        fed = tf1.placeholder(tf.int64, [], name="fed")
    return batch["user"] + fed


def _crossed(batch: Any) -> tf.Tensor:
    return tf.sparse.cross_hashed([batch["word"], batch["user"]], num_buckets=50).values


def _buckets(batch: Any) -> tf.Tensor:
    return tf.cast(tf.raw_ops.Bucketize(input=batch["price"], boundaries=[1.0, 3.0, 8.0]), tf.int64)


def _python(batch: Any) -> tf.Tensor:
    return tf.reshape(tf1.py_func(lambda user: user + 1, [batch["user"]], tf.int64), [-1, 3])


def _checked(batch: Any) -> tf.Tensor:
    with tf.control_dependencies([tf1.assert_greater(batch["user"], tf.constant(-100, tf.int64))]):
        return tf.identity(batch["user"])


def _two_batches(batch: Any) -> tf.Tensor:
    other = tf1.data.make_one_shot_iterator(columns(9).repeat()).get_next()
    return batch["user"] + other["item"][0]


def _in_branch(batch: Any) -> tf.Tensor:
    switched = tf.raw_ops.Switch(data=batch["user"], pred=tf.constant(True))
    return switched.output_true


def _hash(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(text, 1000)


def _shuffled(seed: int) -> Any:
    return columns(seed).unbatch().shuffle(ROWS, seed=3).batch(BATCH).repeat(2)


def _with_user(change: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[int], Any]:
    return _mapped(lambda batch: {**batch, "user": change(batch["user"])})


_NOISY = _with_user(lambda user: user + tf.random.uniform([], 0, 5, tf.int64, seed=4))
_TUPLE = _mapped(lambda batch: (batch["user"], batch["item"], batch["y"]))
_NESTED = _mapped(lambda batch: ({"deep": (batch["user"], {"item": batch["item"]}), "word": batch["word"]}, batch["y"]))
_SPARSE = _mapped(lambda batch: {"sparse": _sparse_of(batch["user"]), "item": batch["item"], "y": batch["y"]})
_RAGGED = _mapped(
    lambda batch: (tf.RaggedTensor.from_tensor(batch["user"] * 2, padding=2), {"item": batch["item"], "y": batch["y"]})
)


def _of_ragged(batch: Any) -> tuple:
    return batch[1]["item"], batch[1]["y"]


KEYS = {
    "identity": Keys(lambda batch: batch["user"]),
    "arithmetic": Keys(lambda batch: tf.math.floormod(batch["user"] * 7, 37) - 10),
    "cast": Keys(lambda batch: tf.cast(tf.cast(batch["price"] * 3, tf.int32), tf.int64)),
    "string_hash": Keys(lambda batch: _hash(batch["word"])),
    "string_to_number": Keys(lambda batch: tf.strings.to_number(batch["digits"], tf.int64)),
    "bucketize": Keys(_buckets),
    "static_table": Keys(lambda batch: _table_of_words().lookup(batch["word"])),
    "table_per_side": Keys(lambda batch: _new_table_of_words(0).lookup(batch["word"])),
    "vocabulary_table": Keys(lambda batch: _table_of_words(3).lookup(batch["word"])),
    "where": Keys(lambda batch: tf.where(batch["user"] > 0, batch["user"], tf.zeros_like(batch["user"]))),
    "concat": Keys(lambda batch: tf.concat([batch["user"], batch["item"][:, tf.newaxis]], 1)),
    "cross": Keys(lambda batch: _hash(tf.strings.join([batch["word"], tf.as_string(batch["user"][:, :2])], "_x_"))),
    "sparse_cross": Keys(_crossed),
    "parse_example": Keys(
        lambda batch: _parsed(batch)["ids"].values,
        _serialized,
        lambda batch: (_parsed(batch)["item"], _parsed(batch)["y"]),
    ),
    "assert": Keys(_checked),
    "shared": Keys(lambda batch: [_hash(batch["word"]), _hash(batch["word"])[:, 0], _hash(batch["word"]) % 5]),
    "in_model": Keys(lambda batch: batch["user"] * 2, is_in_model=True),
    "data_shuffled": Keys(lambda batch: batch["user"], _shuffled),
    "data_random": Keys(lambda batch: batch["user"], _NOISY),
    "data_reads_variable": Keys(lambda batch: batch["user"], _with_user(_offset)),
    "tuple": Keys(lambda batch: batch[0] * 2, _TUPLE, lambda batch: batch[1:]),
    "nested": Keys(
        lambda batch: batch[0]["deep"][0] * 2, _NESTED, lambda batch: (batch[0]["deep"][1]["item"], batch[1])
    ),
    "dense_beside_sparse": Keys(lambda batch: batch["item"] * 3, _SPARSE),
    "sparse_values": Keys(lambda batch: batch["sparse"].values, _SPARSE),
    "sparse_to_dense": Keys(lambda batch: tf.sparse.to_dense(batch["sparse"], -1), _SPARSE),
    "ragged_flat_values": Keys(lambda batch: batch[0].flat_values, _RAGGED, _of_ragged),
    "ragged_to_tensor": Keys(lambda batch: batch[0].to_tensor(-1), _RAGGED, _of_ragged),
    "cond_v1": Keys(_conditional, control_flow_v2=False),
    "cond_v2": Keys(_conditional, control_flow_v2=True),
    "while_v2": Keys(_loop, control_flow_v2=True),
    "while_v1": Keys(_loop, control_flow_v2=False),
    "branch_v1": Keys(_in_branch, control_flow_v2=False),
    "placeholder": Keys(_fed, feed={"fed:0": 3}),
    "variable": Keys(lambda batch: _offset(batch["user"])),
    "mutable_table": Keys(_mutable_table),
    "random": Keys(_noise),
    "random_in_model": Keys(_noise, is_in_model=True),
    "python": Keys(_python),
    "two_batches": Keys(_two_batches, ends=False),
    "constant": Keys(lambda batch: tf.constant([1, 2, 3, 1], tf.int64), ends=False),
}


# --- Iterators ---


@dataclasses.dataclass
class Draws:
    """What a script draws its batches from.

    Attributes:
        batches: by side, True for training.
        starts: initializers by side; empty where nothing need be started.
        handles: by side: the handle placeholder and the handle to feed for it.
        alternates: whether both sides are started at once and take turns.
    """

    batches: dict[bool, Any]
    starts: dict[bool, Any] = dataclasses.field(default_factory=dict)
    handles: dict[bool, tuple[tf.Tensor, tf.Tensor]] = dataclasses.field(default_factory=dict)
    alternates: bool = False


Data = Callable[[int], Any]


def _two(make: Callable[[Any], Any], data: Data) -> dict[bool, Any]:
    return {True: make(data(0)), False: make(data(1))}


def _initializers(iterators: dict[bool, Any]) -> dict[bool, Any]:
    return {side: iterator.initializer for side, iterator in iterators.items()}


def _initializable(data: Data) -> Draws:
    iterators = _two(tf1.data.make_initializable_iterator, data)
    batches = {side: iterator.get_next() for side, iterator in iterators.items()}
    return Draws(batches, _initializers(iterators), alternates=True)


def _one_shot(data: Data) -> Draws:
    iterators = _two(tf1.data.make_one_shot_iterator, data)
    return Draws({side: iterator.get_next() for side, iterator in iterators.items()}, alternates=True)


def _structure_of(data: Any) -> Any:
    return tf1.data.Iterator.from_structure(*_spec(data))


def _spec(data: Any) -> tuple:
    return (
        tf1.data.get_output_types(data),
        tf1.data.get_output_shapes(data),
        None,
        tf1.data.get_output_classes(data),
    )


def _from_structure(data: Data) -> Draws:
    datasets = {True: data(0), False: data(1)}
    iterator = _structure_of(datasets[True])
    starts = {side: iterator.make_initializer(dataset) for side, dataset in datasets.items()}
    batch = iterator.get_next()
    return Draws({True: batch, False: batch}, starts)


def by_handle(handle: tf.Tensor, data: Any) -> Any:
    """An iterator with the elements of a dataset that draws by handle."""
    types, shapes, _, classes = _spec(data)
    return tf1.data.Iterator.from_string_handle(handle, types, shapes, classes)


def _handle(name: str = "handle") -> tf.Tensor:
    return tf1.placeholder(tf.string, [], name=name)


def _feedable(data: Data, make_eval: Callable[[Any], Any] = tf1.data.make_initializable_iterator) -> Draws:
    """One get_next, two sources."""
    iterators = {True: tf1.data.make_initializable_iterator(data(0)), False: make_eval(data(1))}
    handle = _handle()
    batch = by_handle(handle, data(0)).get_next()
    starts = {True: iterators[True].initializer}
    if make_eval is not tf1.data.make_one_shot_iterator:
        starts[False] = iterators[False].initializer
    handles = {side: (handle, iterator.string_handle()) for side, iterator in iterators.items()}
    return Draws({True: batch, False: batch}, starts, handles, alternates=True)


def _feedable_one_shot(data: Data) -> Draws:
    return _feedable(data, tf1.data.make_one_shot_iterator)


def _feedable_structure(data: Data) -> Draws:
    """The source is an iterator with two datasets."""
    datasets = {True: data(0), False: data(1)}
    iterator = _structure_of(datasets[True])
    starts = {side: iterator.make_initializer(dataset) for side, dataset in datasets.items()}
    handle = _handle()
    batch = by_handle(handle, datasets[True]).get_next()
    return Draws({True: batch, False: batch}, starts, dict.fromkeys((True, False), (handle, iterator.string_handle())))


def _feedable_two_handles(data: Data) -> Draws:
    """A placeholder, a get_next and a source for each side; nothing says which source goes where."""
    iterators = _two(tf1.data.make_initializable_iterator, data)
    handles = {side: (_handle(f"handle_{side}"), iterator.string_handle()) for side, iterator in iterators.items()}
    batches = {side: by_handle(handle, data(0)).get_next() for side, (handle, _) in handles.items()}
    return Draws(batches, _initializers(iterators), handles, alternates=True)


def _feedable_named_handle(data: Data) -> Draws:
    """The handle of training comes through the graph, that of evaluation through a placeholder."""
    iterators = _two(tf1.data.make_initializable_iterator, data)
    handle = _handle()
    default = tf1.placeholder_with_default(iterators[True].string_handle("own_handle"), [], name="with_default")
    batches = {True: by_handle(default, data(0)).get_next(), False: by_handle(handle, data(0)).get_next()}
    handles = {False: (handle, iterators[False].string_handle())}
    return Draws(batches, _initializers(iterators), handles, alternates=True)


def _feedable_and_direct(data: Data) -> Draws:
    """Training draws by handle, evaluation directly; both make the same keys of their batches."""
    iterators = _two(tf1.data.make_initializable_iterator, data)
    handle = _handle()
    batches = {True: by_handle(handle, data(0)).get_next(), False: iterators[False].get_next()}
    handles = {True: (handle, iterators[True].string_handle())}
    return Draws(batches, _initializers(iterators), handles, alternates=True)


def _feedable_other_shapes(data: Data) -> Draws:
    """Sources whose shapes are known to a different degree."""
    exact = tf1.data.make_initializable_iterator(data(0).take(4).map(_as_full_batch))
    loose = tf1.data.make_initializable_iterator(data(1))
    handle = _handle()
    batch = by_handle(handle, data(1)).get_next()
    handles = {True: (handle, exact.string_handle()), False: (handle, loose.string_handle())}
    return Draws(
        {True: batch, False: batch}, {True: exact.initializer, False: loose.initializer}, handles, alternates=True
    )


def _as_full_batch(batch: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tf.ensure_shape(tensor, [BATCH, *tensor.shape[1:]]), batch)


def _feedable_beside_other(data: Data) -> Draws:
    """Evaluation draws from an iterator whose elements are of another kind."""
    train = tf1.data.make_initializable_iterator(data(0))
    other = tf1.data.make_initializable_iterator(tf.data.Dataset.zip((data(1), tf.data.Dataset.range(99))))
    handle = _handle()
    batches = {True: by_handle(handle, data(0)).get_next(), False: other.get_next()[0]}
    starts = {True: train.initializer, False: other.initializer}
    return Draws(batches, starts, {True: (handle, train.string_handle())}, alternates=True)


def _feedable_direct_conflict(data: Data) -> Draws:
    """The source of evaluation is also read directly, by what makes other keys of its batches."""
    draws = _feedable(data)
    maker = draws.starts[False]
    spec = tf.nest.flatten(draws.batches[True])
    direct = tf.raw_ops.IteratorGetNext(
        iterator=maker.inputs[1],
        output_types=[tensor.dtype for tensor in spec],
        output_shapes=[tensor.shape for tensor in spec],
    )
    tf.identity(direct[0], name="peek")
    return draws


def _twin_handle(data: Data) -> bytes:
    """The handle of an iterator that another graph names as the script's graph names its own."""
    with tf.Graph().as_default():
        iterator = tf1.data.make_initializable_iterator(data(0), shared_name="twin")
        with tf1.Session() as session:
            return session.run(iterator.string_handle())


def _feedable_constant(data: Data) -> Draws:
    """The handle is a constant, so nothing in the graph says what it names."""
    iterator = tf1.data.make_initializable_iterator(data(0), shared_name="twin")
    other = tf1.data.make_initializable_iterator(data(1), shared_name="evaluation")
    batch = by_handle(tf.constant(_twin_handle(data)), data(0)).get_next()
    return Draws({True: batch, False: other.get_next()}, _initializers({True: iterator, False: other}))


def _feedable_without_handle(data: Data) -> Draws:
    """No op of the graph gives the handle that is fed."""
    iterators = {}
    datasets = {True: data(0), False: data(1)}
    starts = {}
    for side, dataset in datasets.items():
        flat = tf.data.experimental.get_structure(dataset)
        specs = tf.nest.flatten(flat)
        iterators[side] = tf.raw_ops.IteratorV2(
            shared_name="twin" if side else "evaluation",
            container="",
            output_types=[spec.dtype for spec in specs],
            output_shapes=[spec.shape for spec in specs],
        )
        starts[side] = tf.raw_ops.MakeIterator(dataset=dataset._variant_tensor, iterator=iterators[side])
    handle = _handle()
    batch = by_handle(handle, data(0)).get_next()
    return Draws({True: batch, False: batch}, starts, dict.fromkeys((True, False), (handle, _twin_handle(data))))


ITERATORS: dict[str, Callable[[Data], Draws]] = {
    "initializable": _initializable,
    "one_shot": _one_shot,
    "from_structure": _from_structure,
    "feedable": _feedable,
    "feedable_one_shot": _feedable_one_shot,
    "feedable_structure": _feedable_structure,
    "feedable_two_handles": _feedable_two_handles,
    "feedable_named_handle": _feedable_named_handle,
    "feedable_and_direct": _feedable_and_direct,
    "feedable_other_shapes": _feedable_other_shapes,
    "feedable_beside_other": _feedable_beside_other,
    "feedable_direct_conflict": _feedable_direct_conflict,
    "feedable_constant": _feedable_constant,
    "feedable_without_handle": _feedable_without_handle,
}


# --- The script ---


@dataclasses.dataclass
class Script:
    """A built script. `contents`: by table, what its end state is read from."""

    draws: Draws
    keys: Keys
    loss: dict[bool, tf.Tensor]
    step: tf.Operation
    contents: dict[str, list]
    tables: list

    def fetches(self, side: bool) -> list:
        return [self.loss[True], self.step] if side else [self.loss[False]]


def build(iterator: str, keys: str, *, is_fixed: bool = False) -> Script:
    """The graph of a script: lookups "keys_<side>" of table "keys", and "plain_<side>" of table "plain"."""
    spec = KEYS[keys]
    was_v2 = tf1.control_flow_v2_enabled()
    _set_control_flow(was_v2 if spec.control_flow_v2 is None else spec.control_flow_v2)
    try:
        return _build(iterator, spec, is_fixed)
    finally:
        _set_control_flow(was_v2)


def _set_control_flow(is_v2: bool) -> None:
    (tf1.enable_control_flow_v2 if is_v2 else tf1.disable_control_flow_v2)()


def _build(iterator: str, spec: Keys, is_fixed: bool) -> Script:
    tf1.set_random_seed(7)
    draws = ITERATORS[iterator](spec.data)
    normal = tf1.random_normal_initializer(0.0, 0.3, seed=5)
    tables = [create_table(tf.int64, DIM, name, normal, device_vocabulary_size=200) for name in ("keys", "plain")]
    loss = {side: _loss(draws.batches[side], spec, tables, side) for side in (True, False)}
    if is_fixed:
        optimizer = lazy_adam.create_hash_optimizer(0.05)
        _, sparse = get_dense_and_sparse_variable()
        step = optimizer.minimize(loss[True], var_list=sparse)
        contents = {table.table_name: _fixed_content(table) for table in tables}
    else:
        local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        optimizer = gradient_descent_by_addr.create_hash_optimizer_by_addr(0.05)
        step = optimizer.apply_gradients(list(zip(tf.gradients(loss[True], local), addresses)))
        contents = {table.table_name: list(ops.table_export(table.handle)) for table in tables}
    return Script(draws, spec, loss, step, contents, tables)


def _loss(batch: Any, spec: Keys, tables: list, side: bool) -> tf.Tensor:
    name = NAMES[side]
    keys = spec.keys(batch)
    ids, labels = spec.plain(batch)
    several = keys if isinstance(keys, list) else [keys]
    loss = tf.reduce_mean(
        tf.square(tf.reduce_sum(sparse_lookup(tables[1], ids, is_train=side, name=f"plain_{name}"), 1) - labels)
    )
    for index, one in enumerate(several):
        suffix = f"_{index}" if index else ""
        rows = sparse_lookup(tables[0], one, is_train=side, name=f"keys_{name}{suffix}")
        loss += tf.reduce_sum(tf.square(rows - 0.5)) * 0.1
        if spec.is_in_model:
            loss += tf.cast(tf.reduce_sum(one), tf.float32) * 0.01
    return loss


def _fixed_content(table: Any) -> list:
    exported = ops.table_export(table.handle)
    offsets = ops.offsets(table.handle, table.variable.handle, ops.find(table.handle, exported.keys))
    return [exported.keys, exported.counts, tf.gather(table.variable, offsets)]


# --- Running it ---

NAMES = {True: "train", False: "eval"}
END = "end of data"


def plan(script: Script) -> Iterator[tuple[str, bool]]:
    """What a training loop does: ("start" | "step" | "rest", side). "rest" steps until the data ends."""
    draws = script.draws
    if draws.starts:
        yield "start", True
        yield from [("step", True)] * 2
    yield from [("start", True)] * (True in draws.starts)  # again, in the middle of the data
    if draws.alternates:
        yield from [("start", False)] * (False in draws.starts)
        yield from [("step", True), ("step", False)] * 2
    yield "rest", True
    yield from [("start", False)] * (False in draws.starts)
    yield "rest", False
    if True in draws.starts:
        yield "start", True
        yield "rest", True


class Runner:
    """Runs the steps of a plan in a session and notes every value."""

    def __init__(self, script: Script, run: Callable[..., Any]) -> None:
        self.values: list = []
        self._script = script
        self.run = run
        self._handles: dict[bool, tuple[tf.Tensor, bytes]] = {}

    def do(self, what: str, side: bool) -> None:
        if what == "start":
            self.run(self._script.draws.starts[side])
        elif what == "step":
            self.values.append(self._step(side))
        elif not self._script.keys.ends:
            self.values.extend([self._step(side), self._step(side)])
        else:
            while self.values[-1:] != [END]:
                self.values.append(self._until_end(side))
            self.values.append(None)

    def _until_end(self, side: bool) -> Any:
        try:
            return self._step(side)
        except tf.errors.OutOfRangeError:
            return END

    def _step(self, side: bool) -> float:
        feed = dict(self._script.keys.feed or {})
        if side in self._script.draws.handles:
            if side not in self._handles:
                placeholder, handle = self._script.draws.handles[side]
                self._handles[side] = placeholder, handle if isinstance(handle, bytes) else self.run(handle)
            placeholder, handle = self._handles[side]
            feed[placeholder] = handle
        return float(self.run(self._script.fetches(side), feed)[0])


# The content of a table of fixed capacity is found by another lookup.
_OF_THE_SCRIPT = re.compile("lookup '(keys|plain)_(train|eval)")


@dataclasses.dataclass
class Outcome:
    """Losses in order, table contents, refusals of the rewrite, all lookups, and those that it moved."""

    values: list
    contents: dict[str, list]
    refusals: list[str]
    lookups: set[str]
    moved: set[str]


# Whoever waits for a batch that nobody makes fails, instead of waiting for ever.
NO_HANG = tf1.ConfigProto(operation_timeout_in_ms=60_000)


def run_in_session(script: Script) -> tuple[list, dict]:
    """Runs the plan of the script in a `Session`."""
    with tf1.Session(config=NO_HANG) as session:
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        runner = Runner(script, session.run)
        for what, side in plan(script):
            runner.do(what, side)
        return runner.values, session.run(script.contents)


def run(
    iterator: str,
    keys: str,
    *,
    is_rewritten: bool,
    is_fixed: bool = False,
    prefetch: int = 1,
    run_session: Callable[[Script], tuple[list, dict]] = run_in_session,
) -> Outcome:
    """Builds a script, rewrites it or not, and runs it."""
    terminate_config_initializer()
    init(use_dynamic_expansion=not is_fixed, prefetch_batch_number=prefetch)
    with tf.Graph().as_default() as graph:
        script = build(iterator, keys, is_fixed=is_fixed)
        refusals: list[str] = []
        if is_rewritten:
            reports = modify_graph_and_start_emb_cache()
            refusals = [
                str(refusal) for report in reports if report.name == "hoist_lookups" for refusal in report.refusals
            ]
        view = GraphView(graph.as_graph_def())
        lookups = [(name, lookup) for lookup in find_lookups(view) for name in merged_names(view, lookup)]
        values, contents = run_session(script)
        assert [table.memory() for table in script.tables] == [None, None]  # nothing holds on to a closed session
    return Outcome(
        values,
        contents,
        [refusal for refusal in refusals if _OF_THE_SCRIPT.search(refusal)],
        {name for name, _ in lookups if _OF_THE_SCRIPT.match(f"lookup '{name}'")},
        {name for name, lookup in lookups if lookup.is_moved},
    )


def assert_same(plain: Outcome, rewritten: Outcome) -> None:
    """Equal bit for bit."""
    assert plain.values == rewritten.values
    assert len({value for value in plain.values if isinstance(value, float)}) > 6  # it really trains
    for name, parts in plain.contents.items():
        assert len(parts[0]) > 2
        for one, other in zip(parts, rewritten.contents[name]):
            np.testing.assert_array_equal(one, other)
