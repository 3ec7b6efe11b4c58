"""A function of the input context as data: its pipelines run on the workers (K14, K15, K16)."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training.models import Trained, assert_equal, named
from tfps.errors import ClusterTimeoutError, UnsupportedError
from tfps.training import pipelines

SIZE, BATCH_SIZE = 103, 10


class Sums(keras.metrics.Metric):
    """How many examples were seen, and the sum of their first features."""

    def __init__(self):
        super().__init__(name="sums")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], "float32"))
        self.total.assign_add(tf.reduce_sum(y_true))

    def result(self):
        return {"count": self.count + 0, "total": self.total + 0}


def part(context):
    """This worker's part of the numbers from 0 to 102, in batches."""
    values = tf.data.Dataset.range(SIZE).shard(context.num_input_pipelines, context.input_pipeline_id)
    return values.map(lambda i: (tf.cast(i, "float32")[None], tf.cast(i, "float32"))).batch(BATCH_SIZE)


TOTAL = SIZE * (SIZE - 1) / 2


@pytest.fixture(params=[1, 3])
def strategy(request, connect):
    return connect(request.param)


@pytest.fixture
def model(strategy):
    return summing_model(strategy)


def summing_model(strategy, **compiled):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    model.compile("adam", "mse", metrics=[Sums()], **compiled)
    return model


@pytest.mark.parametrize("steps_per_execution", [1, 7])
def test_each_element_of_each_part_is_visited_once_an_epoch(steps_per_execution, strategy):
    model = summing_model(strategy, steps_per_execution=steps_per_execution)
    history = model.fit(part, epochs=2, validation_data=part, verbose=0).history
    for name in ("", "val_"):
        assert history[f"{name}count"] == [SIZE] * 2
        assert history[f"{name}total"] == [TOTAL] * 2
    workers = strategy.extended._num_workers
    sizes = [len(range(worker, SIZE, workers)) for worker in range(workers)]
    assert int(model.optimizer.iterations) == 2 * sum(-(-size // BATCH_SIZE) for size in sizes)
    assert model.evaluate(part, verbose=0, return_dict=True)["total"] == TOTAL


def test_parts_of_different_lengths_are_all_read(three_workers):
    lengths = [3, 10, 0]

    def uneven(context):
        return part(tf.distribute.InputContext()).take(lengths[context.input_pipeline_id])

    model = summing_model(three_workers)
    history = model.fit(uneven, epochs=3, verbose=0).history
    assert history["count"] == [130] * 3
    assert history["total"] == [sum(range(30)) + sum(range(100))] * 3
    assert int(model.optimizer.iterations) == 39
    assert model.train_function.steps_by_worker == {0: 9, 1: 30, 2: 0}


def test_one_worker_equals_keras(one_worker, samples):
    def in_order(context):
        return tf.data.Dataset.from_tensor_slices(samples).batch(BATCH_SIZE)

    def trained(data, strategy):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = keras.Sequential([keras.Input((20,)), layers.Dropout(0.3), layers.Dense(3, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"], jit_compile=False)
        history = model.fit(data, epochs=4, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, shuffle=False, verbose=0).history
        return Trained(named(model.variables), named(model.optimizer.variables), history)

    local = trained(in_order(None), tf.distribute.get_strategy())
    assert_equal(trained(in_order, one_worker), local, history_within=1e-6)


def test_an_endless_part_goes_on_where_the_last_epoch_ended(one_worker):
    model = summing_model(one_worker, steps_per_execution=3)
    history = model.fit(lambda context: part(context).repeat(), epochs=2, steps_per_epoch=8, verbose=0).history
    assert history["total"] == [sum(range(80)), sum(range(80, SIZE)) + sum(range(50))]
    assert int(model.optimizer.iterations) == 16


def test_parts_that_end_early_are_warned_of_and_start_again(model):
    with pytest.warns(UserWarning, match="ran out of data") as warned:
        history = model.fit(part, epochs=2, steps_per_epoch=50, verbose=0).history
    assert len(warned) == 2
    assert history["total"] == [TOTAL] * 2


def test_a_part_that_no_worker_reads_ends_the_wait(one_worker, monkeypatch):
    monkeypatch.setattr(pipelines, "MOST_SECONDS_WITHOUT_BATCH", 0.2)
    epoch = pipelines.PipelineEpochIterator(part, distribute_strategy=one_worker)
    epoch._workers = 2  # as if another one had gone before it took a step
    train = summing_model(one_worker).make_train_function()
    reports = (train(turn) for _, _, turn in epoch)
    with pytest.raises(ClusterTimeoutError, match=r"no batch for 0 s from the workers \[1\], whose parts have not"):
        list(reports)


def test_files_are_dealt_out_by_python_numbers(three_workers):
    files = [f"file {number}" for number in range(5)]
    lengths = []

    def lines(context):
        own = files[context.input_pipeline_id :: context.num_input_pipelines]
        lengths.append(len(own))
        assert context.get_per_replica_batch_size(32) == 32
        return tf.data.Dataset.from_tensor_slices(own).map(lambda name: ([[1.0]], tf.strings.length(name)[None]))

    model = summing_model(three_workers)
    assert model.fit(lines, verbose=0).history["count"] == [5]
    assert lengths == [2, 2, 1]


def test_an_object_that_makes_datasets_is_taken(three_workers):
    class DatasetCreator:  # in tf_keras an object like this stands around the function
        def __init__(self, dataset_fn):
            self.dataset_fn = dataset_fn

        def __call__(self, *args, **kwargs):
            return self.dataset_fn(*args, **kwargs)

    assert summing_model(three_workers).fit(DatasetCreator(part), verbose=0).history["total"] == [TOTAL]


def test_lookups_in_the_pipelines_and_in_the_model(three_workers):
    words, labels = ["sun", "rain", "wind", "snow"] * 10, [1.0, 2.0, 3.0, 4.0] * 10
    with three_workers.scope():
        in_pipeline = layers.StringLookup(vocabulary=["sun", "rain", "wind", "snow"])
        in_model = layers.StringLookup(vocabulary=["sun", "rain", "wind", "snow"])
        left, right = keras.Input((), dtype="string"), keras.Input((), dtype="int64")
        equal = layers.Lambda(lambda ids: tf.cast(ids[0] - ids[1], "float32")[:, None])([in_model(left), right])
        model = keras.Model([left, right], layers.Dense(1, kernel_initializer="ones")(equal))

    def looked_up(context):
        dataset = tf.data.Dataset.from_tensor_slices((words, labels))
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        return dataset.map(lambda word, label: ((word, in_pipeline(word)), label)).batch(4)

    model.compile("sgd", "mse", metrics=["mse"])
    # Both tables agree on every word, so the model sees zeros and answers its bias, zero.
    assert model.evaluate(looked_up, verbose=0)[1] == pytest.approx((1 + 4 + 9 + 16) / 4)


def test_an_error_in_a_pipeline_arrives_and_training_goes_on(model):
    def failing(context):
        def fail(*element):
            with tf.control_dependencies([tf.debugging.assert_less(element[1], 50.0, "no such value")]):
                return tf.nest.map_structure(tf.identity, element)

        return part(context).unbatch().map(fail).batch(BATCH_SIZE)

    with pytest.raises(tf.errors.InvalidArgumentError, match="no such value"):
        model.fit(failing, verbose=0)
    assert model.fit(part, verbose=0).history["total"] == [TOTAL]


def test_what_makes_no_dataset_is_refused(model):
    with pytest.raises(UnsupportedError, match=r"must return a tf.data.Dataset of batches. Received: ndarray"):
        model.fit(lambda context: np.ones((3, 1)), verbose=0)
    with pytest.raises(ValueError, match="`y` should not be passed"):
        model.fit(part, np.ones(3), verbose=0)


def test_data_that_is_distributed_already_is_refused(model, strategy):
    with pytest.raises(UnsupportedError, match="Received: a dataset that the strategy has distributed already"):
        model.fit(strategy.distribute_datasets_from_function(part), verbose=0)


def test_predictions_have_an_order_that_pipelines_have_not(model):
    with pytest.raises(UnsupportedError, match=r"Received: a function of the input context. Pass arrays or a"):
        model.predict(part, verbose=0)
