"""The code of TensorFlow's guide to parameter servers, unchanged, wherever `import tfps` stands (K11)."""

import pytest

from tests.training import scripts

DATA = """
import json
import numpy as np
import tensorflow as tf

random = np.random.default_rng(0)
x = random.normal(size=(200, 10)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200).batch(20)
"""

CLUSTER = """
from tfps.cluster.local import LocalCluster

cluster = LocalCluster(workers=2, ps=2)
cluster_dict = cluster.cluster_spec
"""

# A cluster that knows nothing of tfps, as a user's own would.
PLAIN_CLUSTER = """
import portpicker

cluster_dict = {
    job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(2)] for job in ("worker", "ps")
}
config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
servers = [
    tf.distribute.Server(tf.train.ClusterSpec(cluster_dict), job_name=job, task_index=index, config=config)
    for job in cluster_dict
    for index in range(2)
]
"""

STRATEGY = """
cluster_spec = tf.train.ClusterSpec(cluster_dict)
cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")
strategy = tf.distribute.experimental.ParameterServerStrategy(cluster_resolver)
"""

TRAINING = """
with strategy.scope():
    model = tf.keras.models.Sequential([
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ])
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(train_dataset, epochs=5)

print(json.dumps({
    "epochs": len(history.history["loss"]),
    "falls": history.history["loss"][-1] < history.history["loss"][0],
    "keys": list(history.history),
    "iterations": int(model.optimizer.iterations),
    "jobs": sorted({variable.value.device.split("/")[1] for variable in model.variables}),
}))
"""

TRAINED = {
    "epochs": 5,
    "falls": True,
    "keys": ["accuracy", "loss"],
    "iterations": 50,
    "jobs": ["job:ps"],
}


@pytest.mark.parametrize(
    "parts",
    [
        ("import tfps", DATA, CLUSTER, STRATEGY, TRAINING),
        (DATA, PLAIN_CLUSTER, STRATEGY, "import tfps", TRAINING),
    ],
    ids=["tfps before the strategy", "tfps after the strategy"],
)
def test_the_guide(parts):
    assert scripts.run("\n".join(parts), seconds=60) == TRAINED
