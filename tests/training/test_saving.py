"""What is saved on a cluster loads in a plain process and on a cluster; training resumes where it was (K19, K23)."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks, layers

from tests.training import scripts
from tests.training.models import Trained, assert_equal, named

LOCALLY = tf.distribute.get_strategy


def compiled(strategy, dropout=0.2):
    """A model with every kind of state: slots, moving averages, seeds, a lookup table, an adapted layer."""
    model = built(strategy, dropout)
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    return model


def built(strategy, dropout=0.2):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        words = layers.StringLookup(vocabulary=["a", "b"], name="words")
        scale = layers.Normalization(mean=0.5, variance=4.0)
        word, number = keras.Input((), dtype="string", name="word"), keras.Input((4,), name="number")
        hidden = layers.Concatenate()([layers.Embedding(3, 2)(words(word)), scale(number)])
        hidden = layers.Dropout(dropout)(layers.BatchNormalization()(layers.Dense(5, activation="relu")(hidden)))
        return keras.Model({"word": word, "number": number}, layers.Dense(1)(hidden))


def with_slots(strategy):
    model = compiled(strategy)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    x = {"word": random.choice(["a", "b", "c"], size=40), "number": random.normal(size=(40, 4)).astype("float32")}
    return x, random.normal(size=(40, 1)).astype("float32")


def fit(model, data, epochs=1, **options):
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(10)
    return model.fit(dataset, epochs=epochs, shuffle=False, verbose=0, **options).history


def predictions(model, data):
    return model.predict(tf.data.Dataset.from_tensor_slices(data[0]).batch(10), verbose=0)


def state(model, history=None):
    """What Keras's formats hold, which is everything but the states of seed generators."""
    variables = [variable for variable in model.variables if "seed_generator" not in variable.path]
    return Trained(named(variables), named(model.optimizer.variables), history or {})


@pytest.fixture
def trained(three_workers, data):
    model = compiled(three_workers)
    fit(model, data)
    return model


def test_a_keras_file_loads_without_a_cluster(trained, data, tmp_path):
    trained.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal(state(loaded), state(trained))
    np.testing.assert_allclose(predictions(loaded, data), predictions(trained, data), rtol=1e-6)
    assert int(loaded.optimizer.iterations) == 4


def test_what_is_saved_loads_where_there_is_no_tfps(trained, data, tmp_path):
    trained.save(tmp_path / "model.keras")
    trained.export(tmp_path / "exported", verbose=False)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=trained), tmp_path / "checkpoints", max_to_keep=1)
    manager.save()
    np.savez(tmp_path / "data.npz", **data[0])
    np.savez(tmp_path / "state.npz", *[value for part in state(trained)[:2] for value in part.values()])
    loaded = scripts.run(f"""
import json, sys
import keras, numpy as np, tensorflow as tf
x = dict(np.load({str(tmp_path / "data.npz")!r}))
model = keras.saving.load_model({str(tmp_path / "model.keras")!r})
predicted = model.predict(tf.data.Dataset.from_tensor_slices(x).batch(10), verbose=0)
exported = tf.saved_model.load({str(tmp_path / "exported")!r})
served = exported.serve({{name: tf.constant(value) for name, value in x.items()}})
clone = keras.Model.from_config(model.get_config())
clone.compile_from_config(model.get_compile_config())
clone.optimizer.build(clone.trainable_variables)
tf.train.Checkpoint(model=clone).restore(tf.train.latest_checkpoint({str(tmp_path / "checkpoints")!r}))
saved = np.load({str(tmp_path / "state.npz")!r})
for loaded in (model, clone):
    variables = [variable for variable in loaded.variables if "seed_generator" not in variable.path]
    variables += loaded.optimizer.variables
    for variable, name in zip(variables, saved.files, strict=True):
        np.testing.assert_array_equal(variable.numpy(), saved[name], err_msg=variable.path)
assert "tfps" not in sys.modules
print(json.dumps([predicted.tolist(), served.numpy().tolist()]))
""")
    for values in loaded:
        np.testing.assert_allclose(values, predictions(trained, data), rtol=1e-5)


def test_a_local_keras_file_goes_on_on_a_cluster(one_worker, data, tmp_path):
    local = compiled(LOCALLY())
    fit(local, data)
    local.save(tmp_path / "model.keras")

    def gone_on(strategy):
        keras.utils.set_random_seed(4)
        with strategy.scope():
            model = keras.saving.load_model(tmp_path / "model.keras")
        return state(model, fit(model, data, epochs=2))

    assert_equal(gone_on(one_worker), gone_on(LOCALLY()))


def test_weights_both_ways(trained, three_workers, data, tmp_path):
    trained.save_weights(tmp_path / "from_cluster.weights.h5")
    local = with_slots(LOCALLY())
    local.load_weights(tmp_path / "from_cluster.weights.h5")
    assert_equal(state(local), state(trained))
    np.testing.assert_allclose(predictions(local, data), predictions(trained, data), rtol=1e-6)
    local.save_weights(tmp_path / "local.weights.h5")
    with_optimizer = with_slots(three_workers)
    with_optimizer.load_weights(tmp_path / "local.weights.h5")
    assert_equal(state(with_optimizer), state(trained))
    for fill in (
        lambda model: model.load_weights(tmp_path / "local.weights.h5"),
        lambda model: model.set_weights(local.get_weights()),
    ):
        model = built(three_workers)
        fill(model)
        np.testing.assert_array_equal(predictions(model, data), predictions(trained, data))
    with three_workers.scope():
        clone = keras.models.clone_model(trained)
    clone.set_weights(trained.get_weights())
    np.testing.assert_array_equal(predictions(clone, data), predictions(trained, data))


@pytest.mark.parametrize("on_cluster", [True, False])
def test_a_tensorflow_checkpoint(on_cluster, trained, three_workers, data, tmp_path):
    """Values also reach slots that are made only after `restore`."""
    path = tf.train.Checkpoint(model=trained).save(tmp_path / "checkpoint")
    strategy = three_workers if on_cluster else LOCALLY()
    fresh, used = compiled(strategy), compiled(strategy)
    fit(used, data, epochs=2)
    for other in (fresh, used):
        status = tf.train.Checkpoint(model=other).restore(path)
        other.optimizer.build(other.trainable_variables)
        status.assert_existing_objects_matched()
        assert_equal(state(other), state(trained))


def test_a_model_is_saved_at_the_end_of_an_epoch_in_every_format(three_workers, data, tmp_path):
    model, states, outputs = compiled(three_workers), [], []
    numbers = {name: tf.constant(values) for name, values in data[0].items()}

    def save(epoch, logs):
        model.save(tmp_path / f"{epoch}.keras")
        model.save_weights(tmp_path / f"{epoch}.weights.h5")
        tf.train.Checkpoint(model=model).write(tmp_path / f"{epoch}.checkpoint")
        model.export(tmp_path / f"{epoch}.exported", verbose=False)
        states.append(state(model))
        outputs.append(model(numbers, training=False).numpy())

    fit(model, data, epochs=2, callbacks=[callbacks.LambdaCallback(on_epoch_end=save)])
    assert int(model.optimizer.iterations) == 8
    for epoch, expected in enumerate(states):
        from_weights, from_checkpoint = with_slots(LOCALLY()), with_slots(LOCALLY())
        from_weights.load_weights(tmp_path / f"{epoch}.weights.h5")
        tf.train.Checkpoint(model=from_checkpoint).read(tmp_path / f"{epoch}.checkpoint")
        for loaded in (keras.saving.load_model(tmp_path / f"{epoch}.keras"), from_weights, from_checkpoint):
            assert_equal(state(loaded), expected)
        exported = tf.saved_model.load(tmp_path / f"{epoch}.exported")
        np.testing.assert_allclose(exported.serve(numbers), outputs[epoch], rtol=1e-5)


class Interrupt(callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 11:
            raise RuntimeError("interrupted")


@pytest.mark.parametrize("save_freq", ["epoch", 3])
def test_interrupted_training_resumes_as_if_nothing_had_happened(save_freq, one_worker, data, tmp_path):
    """Epochs have four batches; after batch 9 or epoch 2 there is a backup."""

    def resumed(strategy, folder):
        first = compiled(strategy, dropout=0.0)
        with pytest.raises(RuntimeError, match="interrupted"):
            fit(first, data, epochs=4, callbacks=[callbacks.BackupAndRestore(folder, save_freq), Interrupt()])
        second = compiled(strategy, dropout=0.0)
        history = fit(second, data, epochs=4, callbacks=[callbacks.BackupAndRestore(folder, save_freq)])
        return state(second, history)

    if save_freq == "epoch":
        never_interrupted = compiled(LOCALLY(), dropout=0.0)
        history = fit(never_interrupted, data, epochs=4)
        expected = state(never_interrupted, {name: values[2:] for name, values in history.items()})
    else:
        expected = resumed(LOCALLY(), tmp_path / "local")
    assert_equal(resumed(one_worker, tmp_path / "cluster"), expected, history_within=1e-6)


def test_training_resumes_in_another_process(three_workers, data, tmp_path):
    first = compiled(three_workers)
    backup = callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(RuntimeError, match="interrupted"):
        fit(first, data, epochs=4, callbacks=[backup, Interrupt(), callbacks.ModelCheckpoint(tmp_path / "at.keras")])
    at_backup = keras.saving.load_model(tmp_path / "at.keras")
    np.savez(tmp_path / "data.npz", y=data[1], **data[0])
    seen = scripts.run(f"""
import json
import keras, numpy as np, tensorflow as tf, tfps
from tests.training.test_saving import compiled, fit, callbacks, state
x = dict(np.load({str(tmp_path / "data.npz")!r}))
y = x.pop("y")
model = compiled(tfps.ParameterServerStrategy(tfps.LocalCluster(workers=2, ps=3)))
epochs = []


def look(epoch, logs):
    if not epochs:
        np.savez({str(tmp_path / "resumed.npz")!r}, *[value for part in state(model)[:2] for value in part.values()])
    epochs.append([epoch, int(model.optimizer.iterations)])


look = callbacks.LambdaCallback(on_epoch_begin=look)
history = fit(model, (x, y), epochs=4, callbacks=[callbacks.BackupAndRestore({str(tmp_path / "backup")!r}), look])
print(json.dumps([epochs, len(history["loss"]), int(model.optimizer.iterations)]))
""")
    assert seen == [[[2, 8], [3, 12]], 2, 16]
    resumed = np.load(tmp_path / "resumed.npz")
    expected = [value for part in state(at_backup)[:2] for value in part.values()]
    for name, value in zip(resumed.files, expected, strict=True):
        np.testing.assert_array_equal(resumed[name], value)


def test_checkpoints_between_batches_hold_what_keras_holds(one_worker, data, tmp_path):
    def saved(strategy, folder):
        path = str(folder / "{epoch}-{batch}.weights.h5")
        fit(
            compiled(strategy),
            data,
            epochs=3,
            callbacks=[callbacks.ModelCheckpoint(path, save_freq=3, save_weights_only=True)],
        )
        reader = built(LOCALLY())
        weights = {}
        for file in sorted(folder.glob("*.h5")):
            reader.load_weights(file)
            weights[file.name] = reader.get_weights()
        return weights

    for name in ("cluster", "local"):
        (tmp_path / name).mkdir()
    cluster, local = saved(one_worker, tmp_path / "cluster"), saved(LOCALLY(), tmp_path / "local")
    assert list(cluster) == list(local)
    assert len(local) == 4
    for name, weights in local.items():
        for ours, theirs in zip(cluster[name], weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)
