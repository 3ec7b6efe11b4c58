"""Prints what `placement` says of models on a real cluster; test_placement.py runs it in its own process."""

import json
import os
import sys

os.environ["GRPC_FAIL_FAST"] = "use_caller"

import keras
import portpicker
import tensorflow as tf

from tfps.reports.placement import placement


def start_cluster(**tasks):
    spec = {job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(number)] for job, number in tasks.items()}
    cluster = tf.train.ClusterSpec(spec)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
    for job, addresses in spec.items():
        for index in range(len(addresses)):
            tf.distribute.Server(cluster, job_name=job, task_index=index, config=config)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")


def embedding_model():
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(1000, 16, name="items"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, name="score"),
        ],
        name="ranker",
    )


class TwoOptimizers(keras.Model):
    def __init__(self):
        super().__init__(name="two")
        self.dense = keras.layers.Dense(2, name="dense")
        self.dense.build((None, 3))
        self.fast = keras.optimizers.SGD(momentum=0.9, name="fast")
        self.fast.build(self.dense.trainable_variables)


resolver = start_cluster(worker=1, ps=3)
strategy = tf.distribute.ParameterServerStrategy(resolver)
said = {}
with strategy.scope():
    model = embedding_model()
    said["not compiled"] = placement(model).to_dict()
    model.compile("adam", "mse", metrics=["mae"])
    said["not built"] = placement(model).to_dict()
    model.optimizer.build(model.trainable_variables)
    said["built"] = placement(model).to_dict()
    said["text"] = str(placement(model))
    said["two optimizers"] = placement(TwoOptimizers()).to_dict()
outside = keras.layers.Dense(1, name="outside")
outside.build((None, 1))
with strategy.scope():
    mixed = keras.Sequential([keras.Input((1,)), outside], name="mixed")
said["outside"] = placement(mixed).to_dict()
halves = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
with tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=halves).scope():
    said["sharded"] = placement(embedding_model()).to_dict()

print(json.dumps(said))
sys.stdout.flush()
# The servers of this process cannot be stopped, so nothing is to wait for them.
os._exit(0)
