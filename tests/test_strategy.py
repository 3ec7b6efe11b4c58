"""What the strategy refuses before it connects, and where it puts variables."""

import pytest
import tensorflow as tf

import tfps
from tfps.errors import ClusterClosedError, ClusterConfigError, UnsupportedError

CLUSTER = {"worker": ["10.0.0.1:2222"], "ps": ["10.0.0.2:2222"]}


@pytest.mark.parametrize("option", ["biggest", 3, None])
def test_an_unknown_placement_is_refused_before_any_wait(option):
    with pytest.raises(UnsupportedError, match=rf"'round_robin' or a function.*Received: {option!r}\."):
        tfps.ParameterServerStrategy(CLUSTER, variable_placement=option)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "60"])
def test_a_timeout_that_is_none_is_refused(seconds):
    with pytest.raises(UnsupportedError, match=rf"positive number of seconds\. Received: {seconds!r}\."):
        tfps.ParameterServerStrategy(CLUSTER, connect_timeout=seconds)


@pytest.mark.parametrize("job", ["worker", "ps", "evaluator"])
def test_only_the_coordinator_makes_a_strategy(job):
    with pytest.raises(UnsupportedError, match=rf"coordinator's process alone\. Received: the task type '{job}'"):
        tfps.ParameterServerStrategy({"cluster": CLUSTER, "task": {"type": job, "index": 0}})


def test_a_faulty_description_is_refused():
    with pytest.raises(ClusterConfigError, match="must have a ps"):
        tfps.ParameterServerStrategy({"worker": ["10.0.0.1:2222"]})


def test_a_closed_cluster_is_refused():
    with tfps.LocalCluster(workers=1, ps=1) as cluster:
        pass
    with pytest.raises(ClusterClosedError, match=r"must be open.*Received: LocalCluster\(.*closed"):
        tfps.ParameterServerStrategy(cluster)


@pytest.fixture(scope="module")
def cluster():
    with tfps.LocalCluster(workers=1, ps=3) as cluster:
        yield cluster


def variable(elements, name="v"):
    return tf.Variable(tf.zeros([elements]), name=name)


def ps_of(variable):
    return tf.DeviceSpec.from_string(variable.device).task


def test_it_is_tensorflows_strategy_with_one_coordinator(cluster):
    strategy = tfps.ParameterServerStrategy(cluster)
    assert isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)
    assert strategy.coordinator is strategy.coordinator
    assert strategy.coordinator is tf.distribute.coordinator.ClusterCoordinator(strategy)
    assert repr(strategy) == "ParameterServerStrategy(workers=1, ps=3, variable_placement='balanced')"


def test_balanced_puts_each_variable_where_the_fewest_bytes_are(cluster):
    with tfps.ParameterServerStrategy(cluster).scope():
        made = [variable(elements) for elements in (100, 10, 20, 20, 5, 60, 1)]
    # By hand, float32 elements after each: 100,0,0  100,10,0  100,10,20  100,30,20  100,30,25  100,30,85  100,31,85
    assert [ps_of(v) for v in made] == [0, 1, 2, 1, 2, 2, 1]


def test_balanced_counts_bytes_and_not_elements(cluster):
    with tfps.ParameterServerStrategy(cluster).scope():
        made = [tf.Variable(tf.zeros([10], dtype)) for dtype in ("float64", "float32", "float16", "float16", "int8")]
    # 80,0,0  80,40,0  80,40,20  80,40,40  and the first of the two equals
    assert [ps_of(v) for v in made] == [0, 1, 2, 2, 1]


def test_balanced_counts_slots(cluster):
    strategy = tfps.ParameterServerStrategy(cluster)
    with strategy.scope():
        first = [variable(elements) for elements in (10, 20, 15)]
        with strategy.extended.colocate_vars_with(first[0]):
            slots = [variable(10), variable(10)]
        last = variable(1)
    assert [ps_of(v) for v in first + slots] == [0, 1, 2, 0, 0]
    assert ps_of(last) == 2  # 30,20,15; without the slots it would be 0


def test_balanced_forgets_variables_that_are_gone(cluster):
    with tfps.ParameterServerStrategy(cluster).scope():
        kept = [variable(10), variable(20), variable(30)]
        gone = variable(50)
        assert ps_of(gone) == 0
        del gone
        assert ps_of(variable(1)) == 0
    assert len(kept) == 3


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
    with tfps.ParameterServerStrategy(cluster, variable_placement="round_robin").scope():
        made = [variable(elements) for elements in (1000, 1, 1, 1, 1)]
    assert [ps_of(v) for v in made] == [0, 1, 2, 0, 1]


class Initializer:
    """Knows what it will make, as the initial values that Keras passes do."""

    shape, dtype = (5, 2), "float32"

    def __call__(self):
        return tf.zeros(self.shape, self.dtype)


def test_a_function_chooses(cluster):
    asked = []

    def choose(name, shape, dtype, ps_bytes):
        asked.append((name, shape, dtype, ps_bytes))
        return len(ps_bytes) - len(asked)

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


@pytest.mark.parametrize("index", [3, -1, None, "0", 1.0, True])
def test_a_function_that_returns_no_parameter_server(cluster, index):
    strategy = tfps.ParameterServerStrategy(cluster, variable_placement=lambda *_: index)
    with strategy.scope(), pytest.raises(UnsupportedError, match=rf"0 to 2.*Received: {index!r} for .*'kernel'"):
        variable(1, name="kernel")
