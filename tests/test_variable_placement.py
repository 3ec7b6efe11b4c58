"""Where the strategy puts variables, checked against calculations by hand and against TensorFlow's own strategy."""

import random
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps
from tfps.errors import UnsupportedError
from tfps.strategy import _Ledger


@pytest.fixture(scope="module")
def cluster():
    with tfps.LocalCluster(workers=1, ps=3) as cluster:
        yield cluster


def variable(elements, name="v"):
    return tf.Variable(tf.zeros([elements]), name=name)


def ps_of(variable):
    return tf.DeviceSpec.from_string(variable.device).task


def ps_of_keras(variable):
    return ps_of(variable.value)


def test_balanced_puts_each_variable_where_the_fewest_bytes_are(cluster):
    with tfps.ParameterServerStrategy(cluster).scope():
        made = [variable(elements) for elements in (100, 10, 20, 20, 5, 60, 1)]
    # By hand, float32 elements after each: 100,0,0  100,10,0  100,10,20  100,30,20  100,30,25  100,30,85  100,31,85
    assert [ps_of(v) for v in made] == [0, 1, 2, 1, 2, 2, 1]


def test_balanced_over_many_sizes(cluster):
    sizes = random.Random(0).choices([1, 3, 10, 31, 100], k=60)
    loads, expected = [0, 0, 0], []
    for size in sizes:
        emptiest = sorted(range(3), key=lambda ps: (loads[ps], ps))[0]
        loads[emptiest] += size
        expected.append(emptiest)
    with tfps.ParameterServerStrategy(cluster).scope():
        made = [variable(size) for size in sizes]
    assert [ps_of(v) for v in made] == expected


def test_balanced_counts_bytes_and_not_elements(cluster):
    with tfps.ParameterServerStrategy(cluster).scope():
        made = [tf.Variable(tf.zeros([10], dtype)) for dtype in ("float64", "float32", "float16", "float16", "int8")]
    # 80,0,0  80,40,0  80,40,20  80,40,40  and the first of the two equals
    assert [ps_of(v) for v in made] == [0, 1, 2, 2, 1]


def test_balanced_counts_the_slots_of_an_optimizer(cluster):
    strategy = tfps.ParameterServerStrategy(cluster)
    with strategy.scope():
        weights = [keras.Variable(np.zeros(elements, "float32")) for elements in (10, 20, 15)]
        optimizer = keras.optimizers.Adam()
        optimizer.build(weights[:1])
        last = keras.Variable(np.zeros(1, "float32"))
    iteration, learning_rate, *slots = optimizer.variables
    assert [ps_of_keras(v) for v in weights] == [0, 1, 2]
    assert [v.shape for v in slots] == [(10,), (10,)]
    assert [ps_of_keras(v) for v in slots] == [0, 0]
    # 40,80,60 and Adam's two scalars (8 and 4 bytes) on the first; its slots make 132,80,60.
    assert [ps_of_keras(v) for v in (iteration, learning_rate)] == [0, 0]
    assert ps_of_keras(last) == 2


def test_balanced_counts_what_is_made_beside_another_variable(cluster):
    strategy = tfps.ParameterServerStrategy(cluster)
    with strategy.scope():
        first = [variable(elements) for elements in (10, 20, 15)]
        with strategy.extended.colocate_vars_with(first[0]):
            beside = [variable(10), variable(10)]
        last = variable(1)
    assert [ps_of(v) for v in first + beside] == [0, 1, 2, 0, 0]
    assert ps_of(last) == 2  # 30,20,15; without what is beside it would be 0


def test_balanced_forgets_variables_that_are_gone(cluster):
    with tfps.ParameterServerStrategy(cluster).scope():
        kept = [variable(10), variable(20), variable(30)]
        gone = variable(50)
        assert ps_of(gone) == 0
        del gone
        assert ps_of(variable(1)) == 0
    assert len(kept) == 3


def bytes_by_ps(variables):
    loads = [0, 0, 0]
    for v in variables:
        loads[ps_of_keras(v)] += int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize
    return loads


def test_a_table_and_its_slots_have_a_parameter_server_to_themselves(cluster):
    with tfps.ParameterServerStrategy(cluster).scope():
        table = keras.layers.Embedding(1_000, 16)
        layers = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(8), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,), dtype="int32"), table, *layers])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        after = keras.layers.Embedding(10, 16)
        after.build(None)
    loads = bytes_by_ps([*model.variables, *optimizer.variables])
    # Everything else: 16*8 + 8 and 8*1 + 1 weights with two slots each, and Adam's two scalars.
    rest = 3 * 4 * (16 * 8 + 8 + 8 + 1) + 8 + 4
    assert loads[0] == 3 * 4 * 1_000 * 16
    assert loads[1] + loads[2] == rest
    assert ps_of_keras(after.embeddings) == 1 + int(loads[2] < loads[1])


def test_shards_of_one_variable_are_spread(cluster):
    strategy = tfps.ParameterServerStrategy(
        cluster, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(3)
    )
    with strategy.scope():
        first = tf.Variable(1.0)
        table = tf.Variable(tf.zeros([9, 2]))
        last = tf.Variable(2.0)
    assert ps_of(first) == 0
    # The scalar's 4 bytes come before three shards of 24: ps 1, ps 2, ps 0.
    assert [ps_of(shard) for shard in table.variables] == [1, 2, 0]
    assert ps_of(last) == 1


def test_round_robin_is_tensorflows_way(cluster):
    def places_under(strategy):
        with strategy.scope():
            first = [variable(elements) for elements in (1000, 1, 1, 1)]
            with strategy.extended.colocate_vars_with(first[1]):
                beside = variable(5)
            return [ps_of(v) for v in [*first, beside, variable(1), variable(1)]]

    ours = places_under(tfps.ParameterServerStrategy(cluster, variable_placement="round_robin"))
    theirs = places_under(tf.distribute.ParameterServerStrategy(tfps.cluster_resolver(cluster)))
    assert ours == theirs == [0, 1, 2, 0, 1, 1, 2]


class Initializer:
    """Knows what it will make, as the initial values that Keras passes do."""

    shape, dtype = (5, 2), "float32"

    def __call__(self):
        return tf.zeros(self.shape, self.dtype)


def test_a_function_chooses(cluster):
    asked = []

    def choose(name, shape, dtype, ps_bytes):
        asked.append((name, shape, dtype, ps_bytes))
        return np.int64(len(ps_bytes) - len(asked))

    outside = tf.constant(2.0)
    with tfps.ParameterServerStrategy(cluster, variable_placement=choose).scope():
        made = [
            tf.Variable([[1, 2, 3]], name="list", dtype=tf.int64),
            tf.Variable(lambda: tf.ones([4]) * outside, name="function"),
            tf.Variable(Initializer(), name="initializer"),
        ]
    assert asked == [
        ("list", (1, 3), tf.int64, (0, 0, 0)),
        ("function", (4,), tf.float32, (0, 0, 24)),
        ("initializer", (5, 2), tf.float32, (0, 16, 24)),
    ]
    assert [ps_of(v) for v in made] == [2, 1, 0]


def test_a_function_chooses_for_a_keras_model_but_not_for_its_slots(cluster):
    asked = []

    def choose(name, shape, dtype, ps_bytes):
        asked.append((name, shape, dtype))
        return 2 if name == "kernel" else 1

    with tfps.ParameterServerStrategy(cluster, variable_placement=choose).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        optimizer = keras.optimizers.SGD(momentum=0.9)
        optimizer.build(model.trainable_variables)
    assert asked[:2] == [("kernel", (4, 3), tf.float32), ("bias", (3,), tf.float32)]
    assert {shape for _, shape, _ in asked[2:]} == {()}
    kernel_slot, bias_slot = optimizer.variables[2:]
    assert [ps_of_keras(v) for v in (*model.variables, kernel_slot, bias_slot)] == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("initial", "options", "shape", "dtype"),
    [
        (5, {}, (), tf.int32),
        (5.0, {}, (), tf.float32),
        (True, {}, (), tf.bool),
        ("text", {}, (), tf.string),
        (["a", "b"], {}, (2,), tf.string),
        ([1, 2], {"dtype": "float16"}, (2,), tf.float16),
        (np.zeros((2, 3)), {}, (2, 3), tf.float64),
        (np.zeros((2, 3)), {"dtype": tf.float32}, (2, 3), tf.float32),
        (tf.zeros([0, 3], tf.bfloat16), {}, (0, 3), tf.bfloat16),
        (lambda: np.ones((2, 2)), {}, (2, 2), tf.float64),
        (lambda: tf.random.normal([3]), {}, (3,), tf.float32),
        (lambda: 3, {}, (), tf.int32),
        # A size that is only known as it runs, and a function that only runs eagerly.
        (lambda: tf.zeros([tf.random.uniform([], 1, 5, tf.int32)]), {}, None, tf.float32),
        (lambda: tf.zeros([2]).numpy(), {}, None, None),
    ],
)
def test_what_is_known_of_a_variable_beforehand(cluster, initial, options, shape, dtype):
    asked = []

    def choose(name, shape, dtype, ps_bytes):
        asked.append((name, shape, dtype))
        return 1

    with tfps.ParameterServerStrategy(cluster, variable_placement=choose).scope():
        made = tf.Variable(initial, **options)
    assert asked == [("Variable", shape, dtype)]
    assert ps_of(made) == 1
    assert dtype in (None, made.dtype)
    assert shape in (None, tuple(made.shape))


@pytest.mark.parametrize("index", [7, 3, -1, None, "x", "0", 1.0, True, np.True_, np.array([1])])
def test_a_function_that_returns_no_parameter_server(cluster, index):
    strategy = tfps.ParameterServerStrategy(cluster, variable_placement=lambda *_: index)
    with strategy.scope(), pytest.raises(UnsupportedError, match="integer from 0 to 2, the index of a PS") as caught:
        variable(1, name="kernel")
    assert f"Received: {index!r} for the variable 'kernel'. Return" in str(caught.value)


def test_what_a_function_raises_arrives_as_it_is(cluster):
    def choose(name, shape, dtype, ps_bytes):
        raise LookupError(name)

    with (
        tfps.ParameterServerStrategy(cluster, variable_placement=choose).scope(),
        pytest.raises(LookupError, match="kernel"),
    ):
        keras.layers.Dense(1).build((None, 1))


@pytest.mark.parametrize("policy", [None, lambda name, shape, dtype, ps_bytes: ps_bytes.index(min(ps_bytes))])
def test_ten_thousand_choices_are_fast(policy):
    class Made(SimpleNamespace):
        __hash__ = object.__hash__

    ledger = _Ledger(100, policy)
    kept = []
    start = time.perf_counter()
    for i in range(10_000):
        ps = ledger.choose({"name": f"v{i}", "shape": (8,), "dtype": tf.float32})
        kept.append(Made(device=f"/job:ps/task:{ps}", shape=tf.TensorShape([8]), dtype=tf.float32))
        ledger.created(kept[-1])
    assert time.perf_counter() - start < 3
    assert [v.device for v in kept[::100]] == ["/job:ps/task:0"] * 100
