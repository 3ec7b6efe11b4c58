"""Training loops written by hand, in the words of TensorFlow's own tutorial, count exactly (F42)."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

STEPS, BATCH_SIZE = 120, 16
WORDS = ["sun", "rain", "wind", "snow"]


@pytest.fixture(scope="module")
def weather():
    random = np.random.default_rng(0)
    return random.choice(WORDS, size=320), random.normal(size=(320, 1)).astype("float32")


def test_the_loop_of_tensorflows_tutorial(three_workers, weather):
    words, noise = weather
    strategy = three_workers
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = layers.StringLookup(vocabulary=WORDS, num_oov_indices=0, mask_token=None)
        label_of = layers.StringLookup(vocabulary=["no", "yes"], num_oov_indices=0, mask_token=None)
        word, extra = keras.Input((), dtype="int64"), keras.Input((1,))
        hidden = layers.Concatenate()([layers.Embedding(4, 3)(word), extra])
        hidden = layers.Dropout(0.1)(layers.BatchNormalization()(hidden))
        model = keras.Model([word, extra], layers.Dense(1, activation="sigmoid")(hidden))
        optimizer = keras.optimizers.RMSprop(0.05)
        accuracy = keras.metrics.BinaryAccuracy()

    def dataset_fn(context):
        labels = np.where(np.isin(words, ["rain", "snow"]), "yes", "no")
        dataset = tf.data.Dataset.from_tensor_slices((words, noise, labels)).shuffle(320).repeat()
        dataset = dataset.map(lambda word, noise, label: ((lookup(word), noise), label_of(label)))
        return dataset.batch(BATCH_SIZE).prefetch(2)

    @tf.function
    def step_fn(iterator):
        def replica_fn(features, labels):
            with tf.GradientTape() as tape:
                predicted = model(features, training=True)
                loss = keras.losses.binary_crossentropy(tf.cast(labels, "float32")[:, None], predicted)
                loss = tf.nn.compute_average_loss(loss, global_batch_size=BATCH_SIZE)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(labels[:, None], predicted)
            return loss

        losses = strategy.run(replica_fn, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def per_worker_dataset_fn():
        return strategy.distribute_datasets_from_function(dataset_fn)

    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
    for epoch in range(3):
        accuracy.reset_state()
        for _ in range(STEPS):
            loss = coordinator.schedule(step_fn, args=(iterator,))
        coordinator.join()
        assert float(accuracy.count) == STEPS * BATCH_SIZE
        assert int(optimizer.iterations) == STEPS * (epoch + 1)
    assert float(accuracy.result()) > 0.95
    assert loss.fetch() < 0.5


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"global_clipnorm": 0.1}])
def test_one_worker_equals_the_loop_without_a_cluster(options, one_worker):
    x = np.random.default_rng(0).normal(size=(20, 8, 4)).astype("float32")

    def make(strategy):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), layers.Dense(6), layers.BatchNormalization(), layers.Dense(1)])
            optimizer, seen = keras.optimizers.Adam(0.01, **options), keras.metrics.Mean()

        def step(batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(batch, training=True) ** 2)
            if loss > 0:  # in a branch, as autograph makes it
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            seen.update_state(loss)
            return loss

        return model, seen, step

    model, seen, step = make(tf.distribute.get_strategy())
    step = tf.function(step)
    losses = [float(step(batch)) for batch in x]

    on_cluster, seen_there, step = make(one_worker)
    step = one_worker.worker_function(step)
    results = []
    for batch in x:
        results.append(step(tf.constant(batch)))
        one_worker.coordinator.join()  # the next step may read only what this one has written
    np.testing.assert_allclose([result.fetch() for result in results], losses, rtol=1e-6)
    assert float(seen_there.result()) == pytest.approx(float(seen.result()), rel=1e-6)
    for ours, theirs in zip(on_cluster.weights, model.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_worker_function_is_scheduled_and_counts_exactly(three_workers):
    with three_workers.scope():
        total, mean = tf.Variable(0.0), keras.metrics.Mean()

    @three_workers.worker_function
    def step(batch, *, scale):
        """Adds a batch up."""
        total.assign_add(tf.reduce_sum(batch) * scale)
        mean.update_state(batch)
        return tf.reduce_max(batch)

    assert (step.__name__, step.__doc__) == ("step", "Adds a batch up.")
    results = [step(tf.constant([1.0, float(number)]), scale=2.0) for number in range(300)]
    three_workers.coordinator.join()
    assert isinstance(results[0], tf.distribute.experimental.coordinator.RemoteValue)
    assert [float(result.fetch()) for result in results] == [max(1, number) for number in range(300)]
    assert float(total) == 2 * (300 + 300 * 299 / 2)
    assert float(mean.count) == 600


def test_what_a_worker_function_raises_arrives_and_the_next_works(three_workers):
    @three_workers.worker_function
    def picky(value):
        with tf.control_dependencies([tf.debugging.assert_positive(value, "no such value")]):
            return value + 1

    picky(tf.constant(-1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such value"):
        three_workers.coordinator.join()
    assert picky(tf.constant(1.0)).fetch() == 2
