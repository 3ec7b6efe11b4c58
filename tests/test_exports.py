"""The names that `import tfps` gives, and that it changes nothing for whoever does not use them."""

import tfps
from tests.training import scripts


def test_public_names():
    assert sorted(tfps.__all__) == [
        "LocalCluster",
        "ParameterServerStrategy",
        "PlacementReport",
        "cluster_resolver",
        "placement",
    ]
    for name in tfps.__all__:
        assert getattr(tfps, name).__doc__


TRAINS_LOCALLY = """
import hashlib, json
import keras
import numpy as np

def digest(arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()

keras.utils.set_random_seed(1)
model = keras.Sequential([
    keras.Input((6, 2)),
    keras.layers.LSTM(4, dropout=0.2),
    keras.layers.BatchNormalization(),
    keras.layers.Dropout(0.2),
    keras.layers.Dense(3, activation="softmax", kernel_constraint="max_norm"),
])
random = np.random.default_rng(0)
x, y = random.normal(size=(50, 6, 2)).astype("float32"), random.integers(0, 3, size=50)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], steps_per_execution=2)
history = model.fit(x, y, batch_size=8, epochs=2, validation_split=0.2, verbose=0).history
print(json.dumps({
    "history": history,
    "variables": digest(variable.numpy() for variable in [*model.variables, *model.optimizer.variables]),
    "evaluated": model.evaluate(x, y, verbose=0),
    "predicted": digest([model.predict(x, verbose=0)]),
    "on batch": float(model.train_on_batch(x[:4], y[:4])[0]),
}))
"""


def test_a_model_under_no_strategy_trains_as_without_tfps():
    assert scripts.run("import tfps\n" + TRAINS_LOCALLY) == scripts.run(TRAINS_LOCALLY)
