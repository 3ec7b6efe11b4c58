"""Data of every kind: each element is visited as often, and means as much, as in plain Keras (K11, K13, K14)."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training import scripts
from tests.training.models import named

# Plain Keras says so of every dataset, since `shuffle=True` is the default of `fit`.
pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")


class Witness(keras.Model):
    """Counts how often each id was trained on."""

    def __init__(self, ids):
        super().__init__()
        self.visits = self.add_weight(shape=(ids,), dtype="int32", initializer="zeros", trainable=False, name="visits")

    def call(self, x):
        return x

    def train_step(self, data):
        ids = tf.reshape(data, [-1])
        self.visits.assign_add(tf.math.bincount(ids, minlength=self.visits.shape[0], maxlength=self.visits.shape[0]))
        return {"batch": tf.shape(ids)[0]}


def witness(strategy, ids, **options):
    with strategy.scope():
        model = Witness(ids)
    model.compile(**options)
    return model


@pytest.fixture(params=[1, 3], ids=["1 worker", "3 workers"], scope="module")
def strategy(request, connect):
    return connect(request.param)


@pytest.mark.parametrize("steps_per_execution", [1, 7])
@pytest.mark.parametrize("size_is_known", [True, False])
def test_each_element_is_visited_once_an_epoch(size_is_known, steps_per_execution, strategy):
    dataset = tf.data.Dataset.range(103).batch(10)
    if not size_is_known:
        dataset = dataset.filter(lambda _: True)
    model = witness(strategy, 103, steps_per_execution=steps_per_execution)
    model.fit(dataset, epochs=3, verbose=0)
    assert model.visits.numpy().tolist() == [3] * 103


def test_an_endless_dataset_goes_on_where_the_last_epoch_ended(strategy):
    model = witness(strategy, 100)
    model.fit(tf.data.Dataset.range(100).repeat().batch(3), steps_per_epoch=10, epochs=3, verbose=0)
    assert model.visits.numpy().tolist() == [1] * 90 + [0] * 10


def test_uneven_batches_are_all_visited(strategy):
    """K14: a share of 3 and a share of 10 batches."""
    sizes = tf.data.Dataset.from_tensor_slices([1, 9, 2, 1, 30, 4])
    dataset = sizes.scan(0, lambda start, size: (start + size, tf.range(start, start + size)))
    model = witness(strategy, 47)
    model.fit(dataset, epochs=2, verbose=0)
    assert model.visits.numpy().tolist() == [2] * 47


def classifier():
    return keras.Sequential(
        [keras.Input((20,)), layers.Dense(8, activation="relu"), layers.Dense(3, activation="softmax")]
    )


def compiled(strategy=None, build=classifier, **options):
    """A model whose training is the same with and without a strategy."""
    keras.utils.set_random_seed(3)
    options = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"], **options}
    if strategy is None:
        model = build()
    else:
        with strategy.scope():
            model = build()
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False, **options)
    return model


def iterations(model):
    return int(model.optimizer.iterations)


def test_steps_per_epoch_below_the_size_of_the_data(strategy, samples):
    model = compiled(strategy)
    dataset = tf.data.Dataset.from_tensor_slices(samples).batch(10)
    history = model.fit(dataset, steps_per_epoch=4, epochs=2, verbose=0).history
    assert iterations(model) == 8
    assert len(history["loss"]) == 2


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_data_that_ends_early_is_warned_of_and_ends_cleanly(steps_per_execution, strategy, samples):
    """K13: 11 batches where 3 x 8 were asked for; Keras begins the data anew in the epoch after."""
    dataset = tf.data.Dataset.from_tensor_slices(samples).batch(10)
    trained = []
    for model in (compiled(strategy, steps_per_execution=steps_per_execution), compiled()):
        with pytest.warns(UserWarning, match="Your input ran out of data"):
            history = model.fit(dataset, epochs=3, steps_per_epoch=8, verbose=0).history
        trained.append((len(history["loss"]), iterations(model)))
    assert trained == [(3, 8 + 3 + 8)] * 2


def test_an_unknown_number_of_batches_is_counted_as_trained(strategy, samples):
    dataset = tf.data.Dataset.from_tensor_slices(samples).batch(10).filter(lambda *_: True)
    model = compiled(strategy)
    for fits in (1, 2):
        model.fit(dataset, epochs=2, verbose=0)
        assert iterations(model) == fits * 22


def test_steps_per_epoch_that_is_no_multiple_of_an_execution(strategy, samples):
    model = compiled(strategy, steps_per_execution=7)
    dataset = tf.data.Dataset.from_tensor_slices(samples).batch(10).repeat()
    model.fit(dataset, steps_per_epoch=50, verbose=0)
    assert iterations(model) == 50


def test_an_empty_dataset_ends_and_the_next_fit_works(strategy, samples):
    model = compiled(strategy)
    dataset = tf.data.Dataset.from_tensor_slices(samples).batch(10)
    model.fit(dataset.take(0), verbose=0)
    model.fit(dataset, verbose=0)
    assert iterations(model) == 11


def named_inputs():
    left, right = keras.Input((12,), name="left"), keras.Input((8,), name="right")
    both = layers.Concatenate()([layers.Dense(4)(left), layers.Dense(4)(right)])
    return keras.Model({"left": left, "right": right}, layers.Dense(3, activation="softmax")(both))


def two_outputs():
    features = keras.Input((20,))
    outputs = {name: layers.Dense(3, activation="softmax", name=name)(features) for name in ("a", "b")}
    return keras.Model(features, outputs)


def batches_of(x, y):
    for start in range(0, len(y), 10):
        yield x[start : start + 10], y[start : start + 10]


def fits(samples):
    """How one fits, by what is special about it: a model, and the arguments of `fit`."""
    x, y = samples
    weights = np.linspace(0, 2, len(y)).astype("float32")
    parts = {"left": x[:, :12], "right": x[:, 12:]}
    dataset = tf.data.Dataset.from_tensor_slices(samples).batch(10)
    return {
        "arrays": (classifier, {"x": x, "y": y}),
        "tensors": (classifier, {"x": tf.constant(x), "y": tf.constant(y)}),
        "generator": (classifier, {"x": batches_of(x, y), "steps_per_epoch": 5}),
        "dataset": (classifier, {"x": dataset}),
        "sample weights": (classifier, {"x": x, "y": y, "sample_weight": weights}),
        "weighted dataset": (
            classifier,
            {"x": tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(10)},
        ),
        "class weights": (classifier, {"x": x, "y": y, "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}),
        "validation data": (classifier, {"x": x, "y": y, "validation_data": (x[:31], y[:31])}),
        "validation dataset": (classifier, {"x": dataset, "validation_data": dataset.skip(7), "validation_freq": 2}),
        "validation split": (classifier, {"x": x, "y": y, "validation_split": 0.25}),
        "named inputs": (named_inputs, {"x": parts, "y": y}),
        "named inputs in a dataset": (
            named_inputs,
            {"x": tf.data.Dataset.from_tensor_slices((parts, y)).batch(10)},
        ),
        "two outputs": (two_outputs, {"x": x, "y": {"a": y, "b": (y + 1) % 3}}),
    }


@pytest.mark.parametrize("name", fits((np.zeros((40, 20)), np.zeros(40))))
def test_what_fit_takes_equals_keras(name, one_worker, samples):
    results = []
    for under in (one_worker, None):
        build, arguments = fits(samples)[name]
        metrics = {"metrics": None, "weighted_metrics": None} if build is two_outputs else {}
        batches = {"batch_size": 10} if hasattr(arguments["x"], "shape") or isinstance(arguments["x"], dict) else {}
        model = compiled(under, build, **metrics)
        history = model.fit(**arguments, **batches, epochs=2, shuffle=False, verbose=0).history
        results.append((history, named(model.variables)))
    (ours, our_values), (theirs, their_values) = results
    assert list(ours) == list(theirs)
    assert ours == theirs
    np.testing.assert_equal(list(our_values.values()), list(their_values.values()))


def test_shuffled_arrays_come_in_kerass_order(one_worker, samples):
    x, y = samples
    for_both = []
    for under in (one_worker, None):
        model = compiled(under)
        model.fit(x, y, batch_size=10, epochs=2, verbose=0)
        for_both.append(list(named(model.variables).values()))
    np.testing.assert_equal(*for_both)


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_evaluate_and_predict_equal_keras(steps_per_execution, strategy, samples):
    """103 rows in batches of 10: the last is short, and rows come back in order (K17)."""
    x, y = samples
    model, local = (
        compiled(under, metrics=["accuracy", "sparse_top_k_categorical_accuracy"], steps_per_execution=spe)
        for under, spe in ((strategy, steps_per_execution), (None, 1))
    )
    local.set_weights(model.get_weights())
    ours = model.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    theirs = local.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    assert list(ours) == list(theirs)
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-6)
    outputs = model.predict(x, batch_size=10, verbose=0)
    assert outputs.shape == (103, 3)
    np.testing.assert_allclose(outputs, local.predict(x, batch_size=10, verbose=0), rtol=1e-6)


def test_predictions_keep_their_structure(strategy, samples):
    x, _ = samples
    with strategy.scope():
        model = two_outputs()
    outputs = model.predict(tf.data.Dataset.from_tensor_slices(x).batch(10), verbose=0)
    assert {name: output.shape for name, output in outputs.items()} == {"a": (103, 3), "b": (103, 3)}
    np.testing.assert_allclose(outputs["b"], model.predict(x, batch_size=50, verbose=0)["b"], rtol=1e-6)


def test_training_does_not_change_what_evaluate_starts_from(strategy, samples):
    x, y = samples
    model = compiled(strategy)
    model.fit(x, y, verbose=0)
    first, second = (model.evaluate(x, y, verbose=0) for _ in range(2))
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_single_batches_equal_keras(one_worker, samples):
    x, y = samples
    results = []
    for under in (one_worker, None):
        model = compiled(under, weighted_metrics=None)
        trained = [model.train_on_batch(x[i : i + 8], y[i : i + 8], return_dict=True) for i in (0, 8)]
        results.append((trained, model.test_on_batch(x[:8], y[:8]), model.predict_on_batch(x[:5])))
        assert iterations(model) == 2
    np.testing.assert_equal(results[0], results[1])


def test_a_lookup_in_the_dataset(strategy):
    lookup = layers.StringLookup(vocabulary=["a", "b"])
    words = tf.data.Dataset.from_tensor_slices([["a", "b"], ["other", "a"], ["b", "b"]])
    model = witness(strategy, 3)
    model.fit(words.map(lambda x: tf.cast(lookup(x), tf.int32)).batch(2), epochs=2, verbose=0)
    assert model.visits.numpy().tolist() == [2, 4, 6]


BEFORE_THE_STRATEGY = """
import json, warnings
import keras
import numpy as np
import tensorflow as tf

x, y = np.random.default_rng(0).normal(size=(40, 4)).astype("float32"), np.arange(40) % 2
arrays = tf.data.Dataset.from_tensor_slices((x, y))
generator = tf.data.Dataset.from_generator(
    lambda: zip(x, y), output_signature=(tf.TensorSpec((4,)), tf.TensorSpec((), tf.int64))
)
datasets = {
    "mapped": arrays.map(lambda a, b: (2 * a, b)).batch(6),
    "generator": generator.batch(6),
    "shuffled": arrays.shuffle(40).batch(6).prefetch(2),
}

import tfps

strategy = tfps.ParameterServerStrategy(tfps.LocalCluster(workers=2, ps=1))
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
trained = {}
for name, dataset in datasets.items():
    before = int(model.optimizer.iterations)
    model.fit(dataset.map(lambda a, b: (a + 1, b)) if name == "mapped" else dataset, epochs=2, verbose=0)
    trained[name] = int(model.optimizer.iterations) - before
print(json.dumps(trained))
"""


def test_datasets_made_before_the_strategy():
    """Connecting renames this process's devices, and such datasets name the old ones (F39)."""
    assert scripts.run(BEFORE_THE_STRATEGY) == dict.fromkeys(("mapped", "generator", "shuffled"), 14)
