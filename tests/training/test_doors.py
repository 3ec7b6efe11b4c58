"""Where a step reads and writes variables: loops, branches, functions of their own, several tapes.

Every model trains on one worker and locally, and ends with the same variables to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfps.training.step import compile_step

pytestmark = pytest.mark.usefixtures("same_arithmetic")


class TwoLayers(keras.Model):
    """Two layers and a metric of its own; what is odd about a model is in its subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(8, activation="tanh", kernel_regularizer="l2")
        self.second = layers.Dense(1)
        self.tracked = keras.metrics.Mean(name="tracked")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.second(self.first(x))

    def apply(self, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))


class ReadsInLoop(TwoLayers):
    def call(self, x: Any, training: bool = False) -> Any:
        def turn(i: Any, h: Any) -> Any:
            return i + 1, self.first(h) @ tf.transpose(tf.convert_to_tensor(self.first.kernel))

        _, h = tf.while_loop(lambda i, _: i < 3, turn, [0, x])
        return self.second(self.first(h))


class ReadsInBranch(TwoLayers):
    def call(self, x: Any, training: bool = False) -> Any:
        return tf.cond(
            tf.reduce_sum(x) > 0, lambda: self.second(self.first(x)), lambda: self.second(self.first(-2 * x))
        )


class FunctionOfItsOwn(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.function = tf.function(lambda x: self.second(self.first(x)))

    def build(self, input_shape: Any) -> None:
        self.first.build(input_shape)
        self.second.build((None, 8))
        super().build(input_shape)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.function(x)


class SecondTapeAfterWrite(TwoLayers):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            squared = tf.reduce_mean((self(x, training=True) - y) ** 2)
        self.apply(tape, squared)
        with tf.GradientTape() as tape:
            absolute = tf.reduce_mean(tf.abs(self(x, training=True) - y))
        self.apply(tape, absolute)
        self.tracked.update_state(squared + absolute)
        return {"loss": self.tracked.result(), "mixed": 2 * self.tracked.result() + squared}


class FunctionMetByTwoTapes(FunctionOfItsOwn):
    train_step = SecondTapeAfterWrite.train_step


class NestedAndPersistentTapes(TwoLayers):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                output = self(x, training=True)
            slope = inner.gradient(output, x)
            loss = tf.reduce_mean((output - y) ** 2) + tf.reduce_mean(slope**2)
        with tf.GradientTape() as other:
            absolute = tf.reduce_mean(tf.abs(self(x, training=True) - y))
        both = zip(
            outer.gradient(loss, self.trainable_variables),
            other.gradient(absolute, self.trainable_variables),
            strict=True,
        )
        gradients = [a + b if a is not None else b for a, b in both]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result()}


class Jacobian(TwoLayers):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(self(x, training=True) - y, axis=1)
        gradients = [tf.reduce_mean(j, axis=0) for j in tape.jacobian(errors, self.trainable_variables)]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracked.update_state(errors)
        return {"tracked": self.tracked.result()}


class Recomputed(TwoLayers):
    def call(self, x: Any, training: bool = False) -> Any:
        scaled = tf.recompute_grad(lambda h: h * tf.reduce_sum(tf.convert_to_tensor(self.first.kernel)))
        return self.second(scaled(self.first(x)))


class UpdatesInLoop(TwoLayers):
    """Each turn must see what the one before it wrote."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data

        def turn(i: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            self.apply(tape, loss)
            self.tracked.update_state(loss)
            return i + 1

        tf.while_loop(lambda i: i < 3, turn, [0], parallel_iterations=1)
        return {"tracked": self.tracked.result()}


class WritesInBranch(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        self.taken = self.add_weight(shape=(), initializer="zeros", trainable=False, name="taken")

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)

        def update() -> int:
            self.taken.assign_add(1.0)
            self.tracked.update_state(loss)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return 0

        tf.cond(tf.reduce_sum(x) > 0, update, lambda: 0)
        self.taken.assign(self.taken + 1.0)
        return {"tracked": self.tracked.result(), "taken": self.taken + 0.0}


class Adversaries(keras.Model):
    """No `call`, two optimizers that are built by the first step, noise from a seed generator."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(6)])
        self.judge = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
        self.judge_loss = keras.metrics.Mean(name="judge_loss")
        self.noise = keras.random.SeedGenerator(7)

    def compile(self, **_: Any) -> None:
        super().compile()
        self.judge_optimizer = keras.optimizers.Adam(0.01)
        self.maker_optimizer = keras.optimizers.SGD(0.01, momentum=0.5)

    def train_step(self, data: Any) -> dict[str, Any]:
        x = data[0]
        made = self.maker(keras.random.normal((tf.shape(x)[0], 3), seed=self.noise))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.judge(x)) - tf.reduce_mean(self.judge(made))
        weights = self.judge.trainable_weights
        self.judge_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            made = self.maker(keras.random.normal((tf.shape(x)[0], 3), seed=self.noise))
            maker_loss = -tf.reduce_mean(self.judge(made))
        weights = self.maker.trainable_weights
        self.maker_optimizer.apply_gradients(zip(tape.gradient(maker_loss, weights), weights, strict=True))
        self.judge_loss.update_state(loss)
        return {"judge_loss": self.judge_loss.result()}


class Largest(keras.metrics.Metric):
    """A metric that is no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.maximum(self.value, tf.reduce_max(prediction)))

    def result(self) -> Any:
        return self.value


class Noisy(layers.Layer):
    """Draws from Keras's global seed generator."""

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(tf.shape(x))


def recurrent(layer: layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((20,)), layers.Reshape((5, 4)), layer, layers.Dense(1)])


MODELS = {
    "loop": ReadsInLoop,
    "branch": ReadsInBranch,
    "function": FunctionOfItsOwn,
    "second tape after a write": SecondTapeAfterWrite,
    "function met by two tapes": FunctionMetByTwoTapes,
    "nested and persistent tapes": NestedAndPersistentTapes,
    "jacobian": Jacobian,
    "recomputed": Recomputed,
    "updates in a loop": UpdatesInLoop,
    "writes in a branch": WritesInBranch,
    "adversaries": Adversaries,
    "LSTM": lambda: recurrent(layers.LSTM(5, dropout=0.2, recurrent_dropout=0.2)),
    "bidirectional": lambda: recurrent(layers.Bidirectional(layers.GRU(3, dropout=0.1))),
    "spectral": lambda: keras.Sequential(
        [keras.Input((20,)), layers.SpectralNormalization(layers.Dense(5)), layers.Dense(1)]
    ),
    "two dropouts": lambda: keras.Sequential(
        [keras.Input((20,)), layers.Dropout(0.2), layers.Dense(4), layers.Dropout(0.2), layers.Dense(1)]
    ),
    "global seed": lambda: keras.Sequential([keras.Input((20,)), Noisy(), layers.Dense(1)]),
    "no sum": lambda: keras.Sequential([keras.Input((20,)), layers.Dense(1)]),
}


def trained(name: str, strategy: Any, x: np.ndarray, steps_per_execution: int = 1) -> tuple[list[np.ndarray], Any]:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = MODELS[name]()
    metrics = [Largest()] if name == "no sum" else None
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=metrics, jit_compile=False)
    model.steps_per_execution = steps_per_execution
    data = (x[:, :6],) if name == "adversaries" else (x, x[:, :1])
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(10)
    history = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history
    return [variable.numpy() for variable in model.variables], history


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_any_form_equals_keras(name, one_worker, samples):
    variables, history = trained(name, one_worker, samples[0])
    local_variables, local_history = trained(name, tf.distribute.get_strategy(), samples[0])
    # Locally each read of a variable is an op of its own, so three gradients are added up in another order.
    within = 1e-5 if name == "recomputed" else 0
    for key, values in local_history.items():
        np.testing.assert_allclose(history.pop(key), values, rtol=within, err_msg=key)
    assert not history
    for variable, local in zip(variables, local_variables, strict=True):
        np.testing.assert_allclose(variable, local, rtol=within, atol=within)


@pytest.mark.parametrize("name", ["loop", "updates in a loop", "writes in a branch", "adversaries", "no sum"])
def test_several_steps_per_execution_change_nothing(name, one_worker, samples):
    variables, _ = trained(name, one_worker, samples[0], steps_per_execution=7)
    for variable, single in zip(variables, trained(name, one_worker, samples[0])[0], strict=True):
        np.testing.assert_array_equal(variable, single)


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and the graphs of the functions it calls."""
    yield graph
    for op in graph.get_operations():
        for attribute in ("body", "cond", "then_branch", "else_branch"):
            if attribute in op.node_def.attr:
                yield from graphs(graph._get_function(op.get_attr(attribute).name).graph)


def traced(model: keras.Model, strategy: Any, x: np.ndarray, y: np.ndarray) -> Any:
    model.fit(x, y, batch_size=10, epochs=1, verbose=0)
    spec = (tf.TensorSpec((None, *x.shape[1:])), tf.TensorSpec((None, *y.shape[1:]), y.dtype))
    return compile_step(strategy, model.train_step, spec).one.graph


def test_a_traced_step_reads_each_weight_once_and_writes_it_where_it_is(one_worker, samples):
    with one_worker.scope():
        model = keras.Sequential([keras.Input((20,)), layers.Dense(4, kernel_regularizer="l2"), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    graph = traced(model, one_worker, samples[0], samples[0][:, :1])
    for variable in model.trainable_variables:
        handle = graph.capture(variable.value.handle)
        consumers = [op.type for op in handle.consumers()]
        assert sorted(consumers) == ["AssignSubVariableOp", "ReadVariableOp"], variable.path
    updates = [op for op in graph.get_operations() if op.type == "AssignSubVariableOp"]
    assert {op.device for op in updates} == {variable.value.device for variable in model.trainable_variables}


def test_a_recurrent_layers_loop_reads_no_variable(one_worker, samples):
    with one_worker.scope():
        model = recurrent(layers.LSTM(5))
    model.compile("sgd", "mse", jit_compile=False)
    outer, *inner = graphs(traced(model, one_worker, samples[0], samples[0][:, :1]))
    assert inner, "an LSTM has a loop"
    assert any(op.type == "ReadVariableOp" for op in outer.get_operations())
    assert not any(op.type == "ReadVariableOp" for graph in inner for op in graph.get_operations())
