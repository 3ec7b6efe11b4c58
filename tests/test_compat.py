"""What tfps relies on of private Keras and TensorFlow, one test per name of `tfps._compat`.

The day a release moves one, the failing test says which, and what tfps expects of it.
"""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps import _compat

_pinned = set()


def pins(name):
    """Marks the test that pins a name of `tfps._compat`."""
    _pinned.add(name)
    return lambda test: test


def assert_has(owner, *names):
    for name in names:
        assert hasattr(owner, name), f"{owner} has no {name!r} any more"


def assert_takes(function, *names):
    taken = inspect.signature(function).parameters
    for name in names:
        assert name in taken, f"{function} takes no {name!r} any more, but {list(taken)}"


def test_every_name_is_pinned():
    assert _pinned == set(_compat.__all__)


@pytest.fixture
def variable(one_worker):
    with one_worker.scope():
        return tf.Variable([2.0, 3.0])


@pytest.fixture
def weight(one_worker):
    with one_worker.scope():
        return keras.Variable(np.ones((2, 3)), dtype="float32")


@pins("CachingVariable")
def test_variables_on_parameter_servers_are_caching_variables(variable, weight):
    assert isinstance(variable, _compat.CachingVariable)
    assert isinstance(weight.value, _compat.CachingVariable)
    names = ("value", "read_value", "_dense_var_to_tensor", "_serialize_to_tensors", "assign", "get", "device")
    assert_has(_compat.CachingVariable, *names)
    assert variable.handle.device == variable.device
    assert isinstance(variable.get(), tf.Variable)


@pins("CompositeTensor")
def test_composite_tensors_are_all_that_are_not_one_tensor():
    rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]))
    for made in (rows, tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([[0, 1]])):
        assert isinstance(made, _compat.CompositeTensor)
    assert not isinstance(tf.constant(1), _compat.CompositeTensor)


@pins("EagerTensor")
def test_eager_tensors_are_those_with_a_value():
    assert isinstance(tf.constant(1), _compat.EagerTensor)
    inside = []
    tf.function(lambda x: inside.append(isinstance(x, _compat.EagerTensor)))(tf.constant(1))
    assert inside == [False]


def graphs_inside():
    """The graphs of a branch, of a loop's body, and of a nested function, with the one around them."""
    found = {}

    def note(name, result):
        found[name] = tf.compat.v1.get_default_graph()
        return result

    @tf.function(autograph=False)
    def around(x):
        note("around", x)
        tf.cond(x > 0, lambda: note("branch", x), lambda: x)
        tf.while_loop(lambda x: x < 2, lambda x: note("body", x + 1), [x])
        return tf.function(lambda x: note("nested", x))(x)

    around(tf.constant(1))
    return found


@pins("ControlFlowFuncGraph")
def test_branches_and_loops_have_control_flow_graphs():
    graphs = graphs_inside()
    for name in ("branch", "body"):
        assert isinstance(graphs[name], _compat.ControlFlowFuncGraph), name
        assert graphs[name].outer_graph is graphs["around"], name
    assert not isinstance(graphs["nested"], _compat.ControlFlowFuncGraph)


@pins("WhileBodyFuncGraph")
def test_only_the_body_of_a_loop_has_a_while_body_graph():
    kinds = {name: isinstance(graph, _compat.WhileBodyFuncGraph) for name, graph in graphs_inside().items()}
    assert kinds == {"around": False, "branch": False, "body": True, "nested": False}


@pins("EpochIterator")
def test_an_epoch_iterator_plans_executions():
    iterator = _compat.EpochIterator(np.zeros((7, 1)), batch_size=2, steps_per_execution=3)
    assert_has(iterator, "_interrupted_warning", "_num_batches", "_current_iterator", "reset", "steps_per_epoch")
    assert_has(iterator.data_adapter, "get_tf_dataset", "on_epoch_end")
    assert iterator.num_batches == 4
    assert_has(_compat.EpochIterator, "_get_iterator")
    assert [(begin, end) for begin, end, _ in iterator._enumerate_iterator()] == [(0, 2), (3, 5)]


@pins("TFEpochIterator")
def test_fit_makes_its_epoch_iterator_by_that_name_in_the_trainers_module():
    assert issubclass(_compat.TFEpochIterator, _compat.EpochIterator)
    assert_has(_compat.TFEpochIterator, "catch_stop_iteration")
    assert_takes(_compat.TFEpochIterator.__init__, "distribute_strategy")
    for method in ("fit", "evaluate", "predict"):
        source = inspect.getsource(getattr(_compat.TensorFlowTrainer, method))
        assert "TFEpochIterator(" in source, f"Keras's {method} makes another iterator now"
        assert "distribute_strategy=self.distribute_strategy" in source, method


@pins("TensorFlowTrainer")
def test_models_are_trained_by_the_tensorflow_trainer():
    assert issubclass(keras.Model, _compat.TensorFlowTrainer)
    for kind in ("train", "test", "predict"):
        assert_takes(getattr(_compat.TensorFlowTrainer, f"make_{kind}_function"), "force")
        assert_has(keras.Model(), f"{kind}_function", f"{kind}_step")
    assert_takes(_compat.TensorFlowTrainer._maybe_symbolic_build, "iterator", "data_batch")


@pins("keras_trainer")
def test_the_trainers_module_is_where_names_are_replaced():
    assert_has(_compat.keras_trainer, "TFEpochIterator", "concat", "TensorFlowTrainer")


@pins("ParameterServerStrategyV2")
def test_public_strategies_are_of_that_class(one_worker):
    assert isinstance(one_worker, _compat.ParameterServerStrategyV2)
    for public in (
        tf.distribute.ParameterServerStrategy,
        tf.distribute.experimental.ParameterServerStrategy,
    ):
        assert issubclass(public, _compat.ParameterServerStrategyV2)


@pins("ParameterServerStrategyV2Extended")
def test_a_strategys_work_is_done_by_its_extended(one_worker):
    kind = _compat.ParameterServerStrategyV2Extended
    assert isinstance(one_worker.extended, kind)
    assert_takes(kind._update, "var", "fn", "args", "kwargs", "group")
    assert_takes(kind._replica_ctx_all_reduce, "value")
    assert_takes(kind._call_for_each_replica, "fn", "args", "kwargs")
    assert_has(kind, "_use_merge_call", "_container_strategy")
    assert one_worker.extended._num_replicas_in_sync == 1


@pins("num_workers")
@pins("num_ps")
def test_a_strategy_knows_its_size(one_worker):
    assert (_compat.num_workers(one_worker), _compat.num_ps(one_worker)) == (1, 2)


@pins("place_variables_with")
def test_a_choice_places_variables(one_worker):
    strategy = tf.distribute.ParameterServerStrategy(one_worker._cluster_resolver)
    assert_has(strategy.extended, "_variable_count", "_create_variable", "_create_variable_round_robin")
    asked, created = [], []

    def choose(options):
        asked.append(options)
        return 1

    _compat.place_variables_with(strategy, choose, created.append)
    with strategy.scope():
        made = [tf.Variable(tf.ones(2)), tf.Variable(tf.ones(3))]
        with strategy.extended.colocate_vars_with(made[0]):
            made.append(tf.Variable(tf.ones(2)))
    assert {tf.DeviceSpec.from_string(variable.device).task for variable in made} == {1}
    assert [tuple(options["initial_value"].shape) for options in asked] == [(2,), (3,)]
    assert len(created) == 3


@pins("read_natively")
def test_a_native_read_is_an_op_of_the_current_graph(variable):
    np.testing.assert_array_equal(_compat.read_natively(variable), [2, 3])
    traced = tf.function(lambda: _compat.read_natively(variable)).get_concrete_function()
    assert [op.type for op in traced.graph.get_operations()].count("ReadVariableOp") == 1


@pins("record_read")
def test_a_tape_takes_a_recorded_value_as_read_from_the_variable(variable):
    @tf.function
    def gradients():
        value = _compat.read_natively(variable)
        with tf.GradientTape() as unaware:
            first = value**2
        with tf.GradientTape() as aware:
            _compat.record_read(variable.get(), value)
            second = value**2
        assert unaware.gradient(first, variable) is None
        assert [watched is variable.get() for watched in aware.watched_variables()] == [True]
        return aware.gradient(second, variable)

    np.testing.assert_array_equal(gradients(), [4, 6])


@pins("updating_device")
def test_an_update_says_whose_device_it_is_on(one_worker, variable):
    devices = []

    def update(updated, amount):
        devices.append(_compat.updating_device())
        return updated.assign_add(amount)

    @tf.function
    def step():
        with tf.distribute.ReplicaContext(one_worker, 0):
            one_worker.extended.update(variable, update, args=(tf.ones(2),))

    with one_worker.scope():
        step()
    assert devices == [variable.device]
    assert _compat.updating_device() is None
    np.testing.assert_array_equal(variable, [3, 4])


@pins("wait_until_ready")
@pins("ran_on")
def test_a_scheduled_function_tells_when_and_where_it_ran(one_worker):
    finished = one_worker.coordinator.schedule(tf.function(lambda: tf.constant(3) + 4))
    one_worker.coordinator.join()
    assert_has(finished, "_status_available_event", "_has_fetched_to_local", "_has_fetched_to_local_lock", "_values")
    assert _compat.wait_until_ready(finished, 10)
    assert finished.get() == 7
    assert _compat.ran_on(finished) == 0


@pins("held_by")
@pins("held_dtype")
def test_a_keras_variable_holds_one_of_tensorflow(weight):
    assert _compat.held_by(weight) is weight.value
    assert _compat.held_dtype(weight) == "float32"
    layer = keras.layers.Dense(2, dtype="mixed_bfloat16")
    layer.build((None, 3))
    assert _compat.held_dtype(layer.kernel) == "float32"


@pins("hold")
def test_what_a_keras_variable_holds_can_be_made_anew(one_worker):
    weight = keras.Variable(np.ones((2, 3)), dtype="float32")
    assert not isinstance(_compat.held_by(weight), _compat.CachingVariable)
    with one_worker.scope():
        _compat.hold(weight, 2 * np.ones((2, 3)))
    assert isinstance(_compat.held_by(weight), _compat.CachingVariable)
    np.testing.assert_array_equal(weight.numpy(), 2 * np.ones((2, 3)))


@pins("set_strategy")
def test_an_optimizer_believes_in_the_strategy_it_was_made_under(one_worker):
    optimizer = keras.optimizers.SGD()
    assert optimizer._distribution_strategy is not one_worker
    _compat.set_strategy(optimizer, one_worker)
    assert optimizer._distribution_strategy is one_worker
    with one_worker.scope():
        inside = keras.optimizers.SGD()
    assert vars(inside).keys() == vars(optimizer).keys()
    assert inside._distribution_strategy is one_worker


@pins("was_made_in_a_scope")
def test_a_model_knows_whether_it_was_made_in_a_scope(one_worker):
    outside = keras.Sequential([keras.layers.Dense(1)])
    with one_worker.scope():
        inside = keras.Sequential([keras.layers.Dense(1)])
        assert outside.distribute_strategy is one_worker
        assert not _compat.was_made_in_a_scope(outside)
    assert _compat.was_made_in_a_scope(inside)


@pins("symbolic_build")
def test_a_model_is_built_from_shapes():
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"])
    _compat.symbolic_build(model, (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 2))))
    assert [tuple(weight.shape) for weight in model.weights] == [(3, 2), (2,)]
    assert [metric.name for metric in model.metrics[1].metrics] == ["mae"]
    assert model.optimizer.built


@pins("concatenate")
def test_outputs_are_joined():
    batches = [{"a": np.full((size, 2), size)} for size in (3, 1)]
    joined = _compat.concatenate(batches)
    np.testing.assert_array_equal(joined["a"], [[3, 3]] * 3 + [[1, 1]])


@pins("variant_of")
@pins("dataset_from_variant")
def test_a_dataset_is_its_variant_and_spec():
    dataset = tf.data.Dataset.range(5).batch(2)
    again = _compat.dataset_from_variant(_compat.variant_of(dataset), dataset.element_spec)
    assert [batch.tolist() for batch in again.as_numpy_iterator()] == [[0, 1], [2, 3], [4]]


@pins("inputs_of")
def test_a_dataset_knows_what_it_was_made_from():
    left, right = tf.data.Dataset.range(2), tf.data.Dataset.range(3)
    assert _compat.inputs_of(left) == []
    assert _compat.inputs_of(tf.data.Dataset.zip((left, right))) == [left, right]


@pins("warn_unless_scheduled")
def test_a_step_that_no_coordinator_schedules_is_warned_of(one_worker, caplog):
    scheduled = tf.function(lambda: _compat.warn_unless_scheduled(one_worker.extended) or tf.constant(1))
    assert one_worker.coordinator.schedule(scheduled).fetch() == 1
    assert caplog.messages == []
    _compat.warn_unless_scheduled(one_worker.extended)
    assert ["without using `ClusterCoordinator.schedule`" in message for message in caplog.messages] == [True]


@pins("DataAdapter")
@pins("dataset_adapter")
def test_an_epoch_iterator_takes_an_adapter_as_it_is():
    dataset = tf.data.Dataset.from_tensor_slices(([1.0, 2.0], [0, 1])).batch(2)
    adapter = _compat.dataset_adapter(dataset, class_weight={0: 3.0, 1: 5.0})
    assert isinstance(adapter, _compat.DataAdapter)
    assert _compat.EpochIterator(adapter).data_adapter is adapter
    ((x, y, weight),) = adapter.get_tf_dataset().as_numpy_iterator()
    assert (x.tolist(), y.tolist(), weight.tolist()) == ([1, 2], [0, 1], [3, 5])


@pins("iterators_on_workers")
def test_each_worker_has_its_own_iterator(three_workers):
    make = [tf.function(lambda i=i: tf.data.Dataset.range(i, 9)).get_concrete_function() for i in range(3)]
    iterators = _compat.iterators_on_workers(three_workers.coordinator, make)
    take = tf.function(lambda iterator: next(iterator))
    results = [three_workers.coordinator.schedule(take, args=(iterators,)) for _ in range(9)]
    three_workers.coordinator.join()
    seen = [(_compat.ran_on(result), int(result.fetch())) for result in results]
    for worker in range(3):
        taken = [value for index, value in seen if index == worker]
        assert taken == list(range(worker, worker + len(taken)))
