"""Models of the kinds in Keras's guides, on data of many kinds, train on one worker as in plain Keras."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.training.models import Trained, assert_equal, named

# Plain Keras says so of every dataset, since `shuffle=True` is the default of `fit`.
pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
SIZE, BATCH_SIZE = 70, 8


class Sampling(layers.Layer):
    """Draws from a normal distribution and adds its divergence as a loss."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, inputs):
        mean, log_variance = inputs
        self.add_loss(-0.5 * ops.mean(1 + log_variance - mean**2 - ops.exp(log_variance)))
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


class Lazy(keras.Model):
    """Built by the first batch; layers in a list, and Python state that counts its tracings."""

    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(5, activation="gelu"), layers.Dense(1)]
        self.calls = 0

    def call(self, x, training=False):
        self.calls += 1
        for block in self.blocks:
            x = block(x)
        return x if training else x * 1.0


class Clips(keras.Model):
    """A `train_step` as in Keras's guide on customizing `fit`."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([tf.clip_by_norm(g, 0.5) for g in gradients], self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, self(x, training=False))
        return {metric.name: metric.result() for metric in self.metrics}


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.abs(y - y_pred)) + sum(self.losses)


class Rows(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return -(-SIZE // BATCH_SIZE)

    def __getitem__(self, index):
        part = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return self.x[part], self.y[part]


def dense(*hidden):
    return lambda: keras.Sequential([keras.Input((4,)), *(make() for make in hidden), layers.Dense(1)])


def two_outputs():
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    shared = layers.Dense(5)
    both = layers.concatenate([shared(left), shared(right)])
    outputs = {"p": layers.Dense(1, name="p")(both), "q": layers.Dense(1, activation="sigmoid", name="q")(both)}
    return keras.Model({"left": left, "right": right}, outputs)


def attention():
    tokens = keras.Input((6,), dtype="int32")
    embedded = layers.Embedding(20, 8)(tokens)
    attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(embedded, embedded)
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(embedded + attended))
    return keras.Model(tokens, layers.Dense(1)(pooled))


def variational():
    inputs = keras.Input((4,))
    hidden = layers.Dense(8, activation="relu")(inputs)
    return keras.Model(inputs, layers.Dense(1)(Sampling()([layers.Dense(2)(hidden), layers.Dense(2)(hidden)])))


def regularized(kind):
    def make():
        inputs = keras.Input((4,))
        hidden = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1")(inputs)
        return kind(inputs, layers.Dense(1)(hidden))

    return make


def of_tokens(*hidden):
    return lambda: keras.Sequential(
        [keras.Input((6,), dtype="int32"), layers.Embedding(20, 4, mask_zero=True), *(make() for make in hidden)]
    )


def half_precision():
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        return keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.Dense(1, dtype="float32")])
    finally:
        keras.mixed_precision.set_dtype_policy(policy)


def of_images(*hidden):
    return lambda: keras.Sequential(
        [keras.Input((8, 8, 3)), *(make() for make in hidden), layers.GlobalAveragePooling2D(), layers.Dense(1)]
    )


def of_texts():
    texts = layers.TextVectorization(max_tokens=20, output_sequence_length=4)
    texts.adapt(["the cat sat", "a dog ran"])
    return keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            texts,
            layers.Embedding(20, 3),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )


def adapted():
    scale = layers.Normalization()
    scale.adapt(np.random.default_rng(5).normal(2, 3, size=(50, 4)))
    return keras.Sequential([keras.Input((4,)), scale, layers.Dense(1)])


class OfRagged(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(tf.reduce_mean(tf.cast(x, "float32"), axis=1, keepdims=True))


def data():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(SIZE, 4)).astype("float32"), random.normal(size=(SIZE, 1)).astype("float32")
    tokens = random.integers(0, 20, size=(SIZE, 6))
    images = random.integers(0, 255, size=(SIZE, 8, 8, 3)).astype("uint8")
    ragged = tf.ragged.constant([list(range(length)) for length in random.integers(1, 5, size=SIZE)])
    sparse = tf.sparse.from_dense(np.where(random.uniform(size=(SIZE, 4)) < 0.5, x, 0))
    texts = random.choice(["the cat", "dog ran a"], size=(SIZE, 1))
    frame = pd.DataFrame(x, columns=list("abcd"))

    def batched(*parts):
        return {"x": tf.data.Dataset.from_tensor_slices(parts).batch(BATCH_SIZE)}

    return {
        "arrays": {"x": x, "y": y, "batch_size": BATCH_SIZE},
        "names": {"x": {"left": x, "right": x[::-1]}, "y": {"p": y, "q": y > 0}, "batch_size": BATCH_SIZE},
        "tokens": {"x": tokens, "y": y, "batch_size": BATCH_SIZE},
        "images": {"x": images, "y": y, "batch_size": BATCH_SIZE},
        "pandas": {"x": frame, "y": frame["a"], "batch_size": BATCH_SIZE},
        "PyDataset": {"x": Rows(x, y)},
        "ragged": batched(ragged, y),
        "sparse": batched(sparse, y),
        "texts": batched(texts, y),
    }


MODELS = {
    "two outputs": (two_outputs, "names"),
    "masked LSTM and GRU": (
        of_tokens(lambda: layers.LSTM(5, return_sequences=True), lambda: layers.GRU(3), lambda: layers.Dense(1)),
        "tokens",
    ),
    "attention": (attention, "tokens"),
    "convolutions": (
        of_images(
            lambda: layers.Conv2D(4, 3),
            lambda: layers.GroupNormalization(2),
            lambda: layers.SeparableConv2D(4, 3),
            lambda: layers.BatchNormalization(),
        ),
        "images",
    ),
    "augmentation": (
        of_images(
            lambda: layers.Rescaling(1 / 255),
            lambda: layers.RandomFlip(seed=1),
            lambda: layers.RandomRotation(0.2, seed=2),
            lambda: layers.RandomContrast(0.2, seed=3),
        ),
        "images",
    ),
    "variational": (variational, "arrays"),
    "built by the first batch": (Lazy, "arrays"),
    "own train_step": (regularized(Clips), "arrays"),
    "own compute_loss": (regularized(OwnLoss), "arrays"),
    "float16 with a loss scale": (half_precision, "arrays"),
    "synchronized normalization": (dense(lambda: layers.BatchNormalization(synchronized=True)), "arrays"),
    "adapted normalization": (adapted, "arrays"),
    "pandas": (dense(), "pandas"),
    "PyDataset": (dense(), "PyDataset"),
    "sparse": (lambda: keras.Sequential([keras.Input((4,), sparse=True), layers.Dense(1)]), "sparse"),
    "ragged": (OfRagged, "ragged"),
    "texts": (of_texts, "texts"),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_as_in_plain_keras(name, one_worker):
    build, kind = MODELS[name]

    def trained(strategy):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = build()
        if kind == "names":
            how = {"loss": {"p": "mse", "q": "binary_crossentropy"}, "loss_weights": {"p": 0.3, "q": 2.0}}
            model.compile("adam", **how, metrics={"p": ["mae"], "q": ["accuracy"]}, jit_compile=False)
        else:
            model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
        history = model.fit(**data()[kind], epochs=2, shuffle=False, verbose=0).history
        numbers = [variable for variable in model.variables if variable.dtype != "string"]
        return Trained(named(numbers), named(model.optimizer.variables), history)

    assert_equal(trained(one_worker), trained(tf.distribute.get_strategy()))
