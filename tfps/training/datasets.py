"""Small things about datasets: reading one that was made before the cluster was connected, and empty places."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfps._compat import CompositeTensor, dataset_from_variant, inputs_of, variant_of


def iterable_here(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, in a form that can be iterated in this process now.

    Connecting to a cluster renames this process's devices, and a dataset made before, or made from one, names the old
    ones. Its graph is taken, freed of device names, and made into a dataset anew.

    Args:
        dataset: A dataset, made before or after the strategy.

    Returns:
        The same elements in the same order.

    Raises:
        tf.errors.OpError: The dataset holds something that did not survive the connection, such as a lookup table
            made before it.
    """
    here = tf.constant(0).device
    if all(variant_of(source).device == here for source in _with_sources(dataset)):
        return dataset
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant_of(dataset), external_state_policy=1, strip_device_assignment=True
    )
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    for nodes in [graph.node, *(function.node_def for function in graph.library.function)]:
        for node in nodes:
            node.device = ""
    moved = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return dataset_from_variant(moved, dataset.element_spec)


def _with_sources(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    found = [dataset]
    for source in found:
        found.extend(inputs_of(source))
    return found


def without_optionals(batch: Any) -> Any:
    """A batch, or its spec, with the places that Keras's data adapters leave empty as None."""
    empty = (tf.experimental.Optional, tf.OptionalSpec)
    return tf.nest.map_structure(lambda x: None if isinstance(x, empty) else x, batch)


def as_tensor(x: Any) -> Any:
    """`x` as a tensor, unless it is one, a composite one, or nothing."""
    return x if x is None or isinstance(x, (tf.Tensor, CompositeTensor)) else tf.convert_to_tensor(x)
