"""The only module that imports private names of Keras or TensorFlow.

Everything else in tfps takes them from here, and ``tests/test_compat.py`` has one test per name, so that the day a
release moves one, the failing test says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.trainers.data_adapters import get_data_adapter as dataset_adapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator
from tensorflow.python.data.ops.dataset_ops import _VariantDataset
from tensorflow.python.distribute.coordinator.cluster_coordinator import PerWorkerValues
from tensorflow.python.distribute.distribute_lib import get_update_replica_id
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
    ParameterServerStrategyV2,
    ParameterServerStrategyV2Extended,
)
from tensorflow.python.distribute.ps_values import CachingVariable
from tensorflow.python.eager.record import record_operation
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph, WhileBodyFuncGraph
from tensorflow.python.ops.resource_variable_ops import variable_accessed

EagerTensor = tf.__internal__.EagerTensor
CompositeTensor = tf.__internal__.CompositeTensor

__all__ = [
    "CachingVariable",
    "CompositeTensor",
    "ControlFlowFuncGraph",
    "DataAdapter",
    "EagerTensor",
    "EpochIterator",
    "ParameterServerStrategyV2",
    "ParameterServerStrategyV2Extended",
    "TFEpochIterator",
    "TensorFlowTrainer",
    "WhileBodyFuncGraph",
    "concatenate",
    "dataset_adapter",
    "dataset_from_variant",
    "held_by",
    "held_dtype",
    "hold",
    "inputs_of",
    "iterators_on_workers",
    "keras_trainer",
    "num_ps",
    "num_workers",
    "place_variables_with",
    "ran_on",
    "read_natively",
    "record_read",
    "set_strategy",
    "symbolic_build",
    "updating_device",
    "variant_of",
    "wait_until_ready",
    "warn_unless_scheduled",
    "was_made_in_a_scope",
]


def place_variables_with(
    strategy: Any, choose: Callable[[dict[str, Any]], int], created: Callable[[Any], None]
) -> None:
    """Let `choose` say on which parameter server each new variable of `strategy` is made.

    TensorFlow deals variables out by a running count modulo the number of parameter servers; setting that count just
    before each creation is the smallest way to a different choice. Variables made beside another one (optimizer
    slots) are not chosen for, but `created` sees them.

    Args:
        strategy: A parameter-server strategy.
        choose: Takes the keyword arguments of the variable's creation (`name`, `shape`, `dtype`, `initial_value`,
            ...) and returns the index of a parameter server. Asked once per shard.
        created: Called with every new variable: shards one by one, and those made beside another one.
    """
    extended = strategy.extended
    deal_out = extended._create_variable_round_robin
    create = extended._create_variable

    def create_where_chosen(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        extended._variable_count = choose(kwargs)
        variable = deal_out(next_creator, **kwargs)
        created(variable)
        return variable

    def create_beside(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        variable = create(next_creator, **kwargs)
        if "colocate_with" in kwargs:
            created(variable)
        return variable

    extended._create_variable_round_robin = create_where_chosen
    extended._create_variable = create_beside


def record_read(variable: Any, value: tf.Tensor) -> None:
    """Tell every active gradient tape that `value` was read from `variable`.

    A tape that was opened after the read itself does not know of it yet; one that knows is not disturbed.
    """
    variable_accessed(variable)
    record_operation(
        "ReadVariableOp",
        [value],
        [variable.handle],
        backward_function=lambda gradient: [gradient],
        forward_function=lambda tangent: [tangent],
    )


def read_natively(variable: Any) -> tf.Tensor:
    """Read a variable of a parameter server with an op in the current graph, past tfps's own door."""
    return variable.get().value()


def updating_device() -> str | None:
    """The device of the variable whose optimizer update is being built, or None outside an update."""
    device = get_update_replica_id()
    return device if isinstance(device, str) else None


def wait_until_ready(remote_value: Any, timeout: float) -> bool:
    """Wait until a scheduled function has failed, was cancelled, or has finished with its result in this process.

    Args:
        remote_value: What `ClusterCoordinator.schedule` returned.
        timeout: Seconds to wait at most for the function, not counting the copying of its result.

    Returns:
        Whether it is over.
    """
    if not remote_value._status_available_event.wait(timeout):
        return False
    with remote_value._has_fetched_to_local_lock:  # held while the result is copied
        return bool(remote_value._has_fetched_to_local or remote_value._error is not None)


def warn_unless_scheduled(extended: Any) -> None:
    """Let TensorFlow warn of a `strategy.run` that no coordinator has scheduled."""
    extended._assert_being_scheduled_by_cluster_coordinator()


def num_workers(strategy: Any) -> int:
    """The number of workers of a parameter-server strategy."""
    return int(strategy.extended._num_workers)


def num_ps(strategy: Any) -> int:
    """The number of parameter servers of a parameter-server strategy."""
    return int(strategy.extended._num_ps)


def held_by(variable: keras.Variable) -> Any:
    """The TensorFlow variable behind a Keras variable, or None if it is not initialised yet."""
    return variable._value


def hold(variable: keras.Variable, initial_value: Any) -> None:
    """Put a new TensorFlow variable, made under the strategy in scope, behind a Keras variable.

    Args:
        variable: The Keras variable.
        initial_value: An array, a callable that makes one, or the new variable itself.
    """
    variable._initialize(initial_value)


def held_dtype(variable: keras.Variable) -> str:
    """The dtype a Keras variable is stored in, whatever it is cast to where it is used."""
    return str(variable._dtype)


def was_made_in_a_scope(model: keras.Model) -> bool:
    """Whether a model was made under some strategy, or else goes with whichever is in scope when it is asked."""
    return model._distribute_strategy is not None


def set_strategy(optimizer: keras.optimizers.Optimizer, strategy: Any) -> None:
    """Let a Keras optimizer work under `strategy`, whatever it was made under."""
    optimizer._distribution_strategy = strategy


def symbolic_build(model: keras.Model, batch: Any) -> None:
    """Build model, metrics, loss and optimizer from the shapes and dtypes of `batch`, as Keras does it."""
    model._symbolic_build(data_batch=batch)


def concatenate(outputs: list[Any]) -> Any:
    """Join the outputs of consecutive batches along their first dimension."""
    return keras.tree.map_structure(lambda *parts: keras_trainer.concat(list(parts)), *outputs)


def variant_of(dataset: tf.data.Dataset) -> tf.Tensor:
    """The tensor behind a dataset."""
    return dataset._variant_tensor


def inputs_of(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The datasets that a dataset was made from."""
    return list(dataset._inputs())


def dataset_from_variant(variant: tf.Tensor, element_spec: Any) -> tf.data.Dataset:
    """A dataset of `element_spec` with `variant` behind it."""
    return _VariantDataset(variant, element_spec)


def iterators_on_workers(coordinator: Any, makers: list[Any]) -> Any:
    """Make an iterator on each worker, again whenever the worker comes back after a failure.

    Args:
        coordinator: A `ClusterCoordinator`.
        makers: For each worker a concrete function that returns its dataset.

    Returns:
        What stands for the iterator of whichever worker runs a function that it is passed to.
    """
    iterators = []
    for worker, make in zip(coordinator._cluster.workers, makers, strict=True):
        iterator = worker.create_resource(lambda make=make: iter(make()))
        iterator._type_spec = tf.data.IteratorSpec(make.structured_outputs.element_spec)
        iterators.append(iterator)
    return PerWorkerValues(tuple(iterators))


def ran_on(remote_value: Any) -> int | None:
    """The index of the worker that a finished function ran on, or None if it returned nothing to tell by."""
    for value in tf.nest.flatten(remote_value._values, expand_composites=True):
        device = tf.DeviceSpec.from_string(value.device)
        if device.job == "worker":
            return int(device.task)
    return None
