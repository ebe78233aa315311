"""Every optimizer, by address and on variables, step by step against its formula and against TensorFlow."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from store_harness import OpTable
from training_harness import DIM, FOUR, OPTIMIZERS, Reference, TwoLookups, gradients_by_key, random_step

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import (
    adagrad,
    adagrad_by_addr,
    ftrl,
    ftrl_by_addr,
    gradient_descent,
    gradient_descent_by_addr,
    lazy_adam,
    lazy_adam_by_addr,
)
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
KEYS = np.array([0, -1, 5, 17, 2**62, -(2**63), 2**63 - 1, *range(100, 115)], np.int64)
STEPS = 12
BOTH_MODES = pytest.mark.parametrize("by_address", [True, False], ids=["by_address", "on_variable"])


@pytest.fixture(autouse=True)
def clean():
    tf1.disable_eager_execution()
    terminate_config_initializer()
    yield
    terminate_config_initializer()


@contextlib.contextmanager
def mode(by_address):
    terminate_config_initializer()
    init(use_dynamic_expansion=by_address)
    with tf.Graph().as_default():
        yield


def _assert_follows(training, rates, seed, padding=()):
    """Trains and compares with the reference after every step; `rates` are the rates of the steps."""
    rng = np.random.RandomState(seed)
    reference = Reference(training.case, training.by_address, KEYS, training.initial_rows(KEYS), padding)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for rate in rates:
            ids, coefficients = random_step(rng, KEYS)
            session.run(training.step, training.feed(ids, coefficients))
            reference.train(gradients_by_key(ids, coefficients), rate)
            reference.assert_close(training.content(session, KEYS.tolist()))
    return reference


@BOTH_MODES
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_follows_its_formula(name, by_address):
    with mode(by_address):
        reference = _assert_follows(TwoLookups(OPTIMIZERS[name], by_address, 0.05), [0.05] * STEPS, seed=3)
    assert len(reference.rows) > len(KEYS) // 2


@BOTH_MODES
def test_sgd_steps_do_not_age_lazy_adam(by_address):
    """The bias correction counts an optimizer's own steps, whatever another one does before and between them."""
    sgd, rng = OPTIMIZERS["sgd_decay"], np.random.RandomState(5)
    with mode(by_address):
        training = TwoLookups(OPTIMIZERS["lazy_adam"], by_address, 0.05)
        sgd_step = sgd.create(by_address, 0.02).apply_gradients(training.pairs())
        reference = Reference(training.case, by_address, KEYS, training.initial_rows(KEYS))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for kind in "sssssaasasa":
                ids, coefficients = random_step(rng, KEYS)
                session.run(sgd_step if kind == "s" else training.step, training.feed(ids, coefficients))
                other, rate = (sgd, 0.02) if kind == "s" else (None, 0.05)
                reference.train(gradients_by_key(ids, coefficients), rate, other)
                if reference.steps:  # before that a table by address has no slots to compare
                    reference.assert_close(training.content(session, KEYS.tolist()))


@BOTH_MODES
@pytest.mark.parametrize("name", FOUR)
def test_rows_of_padding_keys_never_change(name, by_address):
    padding = (5, -1, 2**62, 424242)
    with mode(by_address):
        kwargs = {"padding_keys": padding, "padding_keys_mask": True, "padding_keys_len": 4}
        training = TwoLookups(OPTIMIZERS[name], by_address, 0.05, **kwargs)
        reference = _assert_follows(training, [0.05] * STEPS, seed=4, padding=padding)
    assert len(set(padding) & set(reference.rows)) == 3  # they were met, and all but one were in the batches


def _schedule(kind, start, decay):
    """(learning rate as a script gives it, global step or None, its values)."""
    constant, falling = [start] * STEPS, [start * decay**step for step in range(STEPS)]
    if kind == "tensor":
        return tf.constant(start), None, constant
    if kind == "float64 tensor":
        return tf.constant(start, tf.float64), None, constant
    if kind == "variable":
        return (
            tf1.get_variable("rate", [], initializer=tf1.constant_initializer(start), use_resource=True),
            None,
            constant,
        )
    global_step = tf1.train.get_or_create_global_step()
    rate = tf1.train.exponential_decay(start, global_step, 1, decay)
    return (lambda: rate) if kind == "callable" else rate, global_step, falling


@BOTH_MODES
@pytest.mark.parametrize("kind", ["tensor", "float64 tensor", "variable", "schedule", "callable"])
@pytest.mark.parametrize("name", FOUR)
def test_learning_rates_that_are_not_numbers(name, kind, by_address):
    with mode(by_address):
        rate, global_step, values = _schedule(kind, 0.1, 0.8)
        training = TwoLookups(OPTIMIZERS[name], by_address, rate, global_step=global_step)
        _assert_follows(training, values, seed=5)


def _tensorflow_rows(case, rate, initial, steps):
    """Rows of a plain variable, one row per key, trained by TensorFlow's optimizer."""
    position = {key: i for i, key in enumerate(KEYS.tolist())}
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("v", initializer=initial, use_resource=True)
        ids = [tf1.placeholder(tf.int64, [None, None]), tf1.placeholder(tf.int64, [None])]
        coefficients = [tf1.placeholder(tf.float32, [None, None, DIM]), tf1.placeholder(tf.float32, [None, DIM])]
        loss = tf.add_n([tf.reduce_sum(tf.gather(variable, a) * b) for a, b in zip(ids, coefficients)])
        step = case.tensorflow(rate).minimize(loss)
        session.run(tf1.global_variables_initializer())
        for step_ids, values in steps:
            places = [np.vectorize(position.get)(part) for part in step_ids]
            session.run(step, dict(zip((*ids, *coefficients), (*places, *values))))
        return session.run(variable)


@BOTH_MODES
@pytest.mark.parametrize("name", sorted(name for name, case in OPTIMIZERS.items() if case.tensorflow))
def test_equals_tensorflows_own(name, by_address):
    """On variables to the bit; by address up to rounding, and Adagrad's epsilon.

    TensorFlow's gradient descent adds repeated rows one by one, so that it rounds otherwise.
    """
    rng = np.random.RandomState(6)
    steps = [random_step(rng, KEYS) for _ in range(STEPS)]
    with mode(by_address):
        training = TwoLookups(OPTIMIZERS[name], by_address, 0.05)
        initial = training.initial_rows(KEYS)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(training.insert, {training.all_keys: KEYS})
            for step in steps:
                session.run(training.step, training.feed(*step))
            content = training.content(session, KEYS.tolist())
    ours = np.stack([content[key][0] for key in KEYS.tolist()])
    theirs = _tensorflow_rows(OPTIMIZERS[name], 0.05, initial, steps)
    assert not np.array_equal(theirs, initial)
    if by_address or name == "sgd":
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(ours, theirs)


APPLY = {
    "sgd": lambda *args: ops.apply_sgd_by_address(*args, 0.1),
    "lazy_adam": lambda *args: ops.apply_lazy_adam_by_address(*args, 0.1),
    "adagrad": lambda *args: ops.apply_adagrad_by_address(*args, 0.1),
    "ftrl": lambda *args: ops.apply_ftrl_by_address(*args, 0.1),
}


@pytest.mark.parametrize("name", sorted(APPLY))
def test_gradient_rows_must_equal_address_rows(name):
    with tf.Graph().as_default():
        handle = ops.table_handle("user", 2)
        with pytest.raises(ValueError, match="gradient rows must equal address rows"):
            APPLY[name](handle, tf.zeros([3], tf.int64), tf.zeros([4, 2]))
        addresses, gradients = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.float32, [None, None])
        step = APPLY[name](handle, addresses, gradients)
        made = ops.find_or_insert(handle, np.array([1, 2]))
        with tf1.Session() as session:
            feed = {addresses: session.run(made), gradients: np.ones([3, 2])}
            with pytest.raises(tf.errors.InvalidArgumentError, match="'user' got 2 addresses and gradients of shape"):
                session.run(step, feed)
            feed[gradients] = np.ones([2, 3])
            with pytest.raises(tf.errors.InvalidArgumentError, match="dim of table 'user': expected 2, got 3"):
                session.run(step, feed)
            feed[gradients] = np.ones([2, 2])
            feed[addresses][1] = 77
            with pytest.raises(tf.errors.InvalidArgumentError, match="illegal address 77 at position 1"):
                session.run(step, feed)
            assert not session.run(ops.table_export(handle).rows)[:, :2].any()


def test_one_optimizer_per_table():
    with mode(True):
        table = create_table(tf.int64, 2, "user", tf1.ones_initializer())
        result = sparse_lookup(table, tf.constant([1], tf.int64))
        loss = tf.reduce_sum(result)
        adagrad_step = adagrad_by_addr.create_hash_optimizer_by_addr(0.1).minimize(loss)
        ftrl_step = ftrl_by_addr.create_hash_optimizer_by_addr(0.1).minimize(loss)
        other_start = adagrad_by_addr.create_hash_optimizer_by_addr(0.1, 0.5).minimize(loss)
        with tf1.Session() as session:
            session.run(adagrad_step)
            for step in (ftrl_step, other_start):
                with pytest.raises(tf.errors.FailedPreconditionError, match="'user' keeps the slots of Adagrad"):
                    session.run(step)


def test_ftrl_refuses_a_rate_of_zero_at_the_step():
    with mode(True):
        table = create_table(tf.int64, 2, "user", tf1.ones_initializer())
        loss = tf.reduce_sum(sparse_lookup(table, tf.constant([1], tf.int64)))
        step = ftrl_by_addr.create_hash_optimizer_by_address(tf.constant(0.0)).minimize(loss)
        with (
            tf1.Session() as session,
            pytest.raises(tf.errors.InvalidArgumentError, match="'user'.*learning_rate of Ftrl must be positive"),
        ):
            session.run(step)


ON_VARIABLE = {
    "sgd": lambda **kwargs: gradient_descent.create_hash_optimizer(**{"learning_rate": 0.1, **kwargs}),
    "lazy_adam": lazy_adam.create_hash_optimizer,
    "adagrad": adagrad.create_hash_optimizer,
    "ftrl": lambda **kwargs: ftrl.create_hash_optimizer(**{"learning_rate": 0.1, **kwargs}),
}
BY_ADDRESS = {
    "sgd": lambda **kwargs: gradient_descent_by_addr.create_hash_optimizer_by_addr(**{"learning_rate": 0.1, **kwargs}),
    "lazy_adam": lazy_adam_by_addr.create_hash_optimizer_by_address,
    "adagrad": adagrad_by_addr.create_hash_optimizer_by_address,
    "ftrl": lambda **kwargs: ftrl_by_addr.create_hash_optimizer_by_address(**{"learning_rate": 0.1, **kwargs}),
}


@pytest.mark.parametrize("name", sorted(ON_VARIABLE))
def test_the_wrong_storage_mode_is_refused(name):
    with pytest.raises(EnvironmentError, match="not initialised"):
        ON_VARIABLE[name]()
    with pytest.raises(EnvironmentError, match="not initialised"):
        BY_ADDRESS[name]()
    with mode(True):
        with pytest.raises(ValueError, match="use create_hash_optimizer_by_address"):
            ON_VARIABLE[name]()
        BY_ADDRESS[name]()
    with mode(False):
        with pytest.raises(ValueError, match="needs init\\(use_dynamic_expansion=True\\)"):
            BY_ADDRESS[name]()
        ON_VARIABLE[name]()


def test_both_spellings_of_the_by_address_functions():
    for module in (gradient_descent_by_addr, lazy_adam_by_addr, adagrad_by_addr, ftrl_by_addr):
        assert module.create_hash_optimizer_by_addr is module.create_hash_optimizer_by_address


@pytest.mark.parametrize(
    ("name", "kwargs", "error", "message"),
    [
        ("sgd", {"weight_decay": 2.0}, ValueError, "weight_decay"),
        ("sgd", {"learning_rate": -0.1}, ValueError, r"learning_rate must be in \[0.0, 10.0\], got -0.1"),
        ("lazy_adam", {"beta1": 1.0}, ValueError, "beta1"),
        (
            "adagrad",
            {"initial_accumulator_value": 0.0},
            ValueError,
            r"initial_accumulator_value must be in \(0.0, 1.0\]",
        ),
        ("adagrad", {"initial_accumulator_value": 1.5}, ValueError, "initial_accumulator_value"),
        ("adagrad", {"learning_rate": "fast"}, TypeError, "learning_rate must be a number"),
        ("adagrad", {"name": ""}, ValueError, "name must have 1 to 200"),
        ("adagrad", {"use_locking": 1}, TypeError, "use_locking must be a bool"),
        ("ftrl", {"learning_rate": 0.0}, ValueError, r"learning_rate must be in \(0.0, 10.0\], got 0.0"),
        ("ftrl", {"learning_rate": 11}, ValueError, "learning_rate"),
        ("ftrl", {"learning_rate_power": 0.1}, ValueError, r"learning_rate_power must be in \(-inf, 0.0\]"),
        ("ftrl", {"initial_accumulator_value": -0.1}, ValueError, "initial_accumulator_value"),
        ("ftrl", {"l1_regularization_strength": -1.0}, ValueError, "l1_regularization_strength"),
        ("ftrl", {"l2_regularization_strength": float("nan")}, ValueError, "l2_regularization_strength"),
        ("ftrl", {"l2_shrinkage_regularization_strength": "x"}, TypeError, "l2_shrinkage_regularization_strength"),
        ("ftrl", {"learning_rate": float("inf")}, ValueError, "learning_rate"),
    ],
)
@BOTH_MODES
def test_parameters_are_checked(name, kwargs, error, message, by_address):
    with mode(by_address), pytest.raises(error, match=message):
        (BY_ADDRESS if by_address else ON_VARIABLE)[name](**kwargs)


@BOTH_MODES
def test_learning_rate_must_be_a_scalar(by_address):
    for create in (BY_ADDRESS if by_address else ON_VARIABLE).values():
        with mode(by_address), pytest.raises(ValueError, match=r"learning_rate must be a scalar, got shape \(2,\)"):
            create(learning_rate=tf.constant([0.1, 0.2]))


@BOTH_MODES
@pytest.mark.parametrize("create", sorted(BY_ADDRESS))
def test_a_function_of_the_step_is_no_learning_rate(create, by_address):
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.8)
    message = r"or a function of no arguments, got .* of type ExponentialDecay.*: schedule\(global_step\)"
    with mode(by_address), pytest.raises(TypeError, match=message):
        (BY_ADDRESS if by_address else ON_VARIABLE)[create](learning_rate=schedule)


@BOTH_MODES
def test_the_tensor_of_a_keras_schedule_is_a_learning_rate(by_address):
    with mode(by_address):
        global_step = tf1.train.get_or_create_global_step()
        rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.8)(global_step)
        training = TwoLookups(OPTIMIZERS["sgd"], by_address, rate, global_step=global_step)
        _assert_follows(training, [0.1 * 0.8**step for step in range(STEPS)], seed=5)


def test_attributes_are_checked_in_the_op():
    with tf.Graph().as_default(), tf1.Session() as session:
        handle = ops.table_handle("t", 2)
        args = (handle, tf.zeros([0], tf.int64), tf.zeros([0, 2]), 0.1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="initial_accumulator_value must not be negative"):
            session.run(ops.apply_adagrad_by_address(*args, initial_accumulator_value=-1.0))
        with pytest.raises(tf.errors.InvalidArgumentError, match="l1 must not be negative, got -2"):
            session.run(ops.apply_ftrl_by_address(*args, l1=-2.0))
        with pytest.raises(tf.errors.InvalidArgumentError, match="learning_rate_power must not be positive"):
            session.run(ops.apply_ftrl_by_address(*args, learning_rate_power=0.5))


def test_two_handles_of_one_name_must_agree_on_padding_keys():
    with tf.Graph().as_default(), tf1.Session() as session:
        session.run(ops.table_size(ops.table_handle("t", 2, padding_keys=[0])))
        with pytest.raises(tf.errors.InvalidArgumentError, match="table 't' exists with another padding_keys"):
            session.run(ops.table_size(ops.table_handle("t", 2)))


def test_padding_keys_are_looked_up_and_counted_like_others():
    with OpTable(2, initializer="constant", initializer_a=3.0, record_counts=True, padding_keys=[7]) as table:
        addresses = table.find_or_insert([7, 8], counts=[4, 1])
        table.sgd(addresses, np.ones([2, 2]), 1.0)
        np.testing.assert_array_equal(table.gather(addresses), [[3, 3], [2, 2]])
        assert table.export().counts.tolist() == [4, 1]


@BOTH_MODES
def test_empty_batches_train_nothing(by_address):
    for name in FOUR:
        with mode(by_address):
            kwargs = {"padding_keys": 5, "padding_keys_mask": True, "padding_keys_len": 1}
            training = TwoLookups(OPTIMIZERS[name], by_address, 0.05, **kwargs)
            empty = training.feed([np.zeros([0, 2]), []], [np.zeros([0, 2, DIM]), np.zeros([0, DIM])])
            only_padding = training.feed([[[5, 5]], [5]], [np.ones([1, 2, DIM]), np.ones([1, DIM])])
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                before = session.run(training.insert, {training.all_keys: KEYS})
                for feed in (empty, only_padding):
                    session.run(training.step, feed)
                np.testing.assert_array_equal(session.run(training.insert, {training.all_keys: KEYS}), before)


@BOTH_MODES
def test_lookups_without_gradient_are_never_trained(by_address):
    with mode(by_address):
        table = create_table(tf.int64, DIM, "user", tf1.ones_initializer(), device_vocabulary_size=10)
        trained = sparse_lookup(table, tf.constant([1, 2], tf.int64))
        frozen = sparse_lookup(table, tf.constant([3, 4], tf.int64), is_grad=False)
        loss = tf.reduce_sum(trained) + tf.reduce_sum(tf.square(frozen))
        optimizer = OPTIMIZERS["sgd"].create(by_address, 0.5)
        step = optimizer.minimize(loss) if by_address else optimizer.minimize(loss, var_list=[table.variable])
        assert len(tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)) == 1
        only_frozen = tf.reduce_sum(frozen)
        sources = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB) if by_address else table.variable
        assert tf.gradients(only_frozen, sources) == [None]
        rows = sparse_lookup(table, tf.constant([1, 2, 3, 4], tf.int64), is_train=False)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(3):
                session.run(step)
            session.run(frozen)
            np.testing.assert_array_equal(session.run(rows)[:, 0], [-0.5, -0.5, 1.0, 1.0])
