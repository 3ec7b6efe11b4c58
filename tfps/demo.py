"""`make demo`: handwritten digits, recognised by a model that four processes train.

The data is scikit-learn's, 1,797 scanned digits of 8 x 8 pixels, shipped with that package. Two worker processes and
two parameter-server processes are started on this machine, the model trains on them with Keras's own `fit`, and the
program says what it did: accuracy on digits it has not seen, where the variables were, and what each worker did.
"""

from __future__ import annotations

import keras
import tensorflow as tf

import tfps


def main() -> None:
    """Train, and say what happened."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        (digits.images / 16).astype("float32"), digits.target, test_size=0.2, random_state=0
    )
    keras.utils.set_random_seed(0)
    with tfps.LocalCluster(workers=2, ps=2, processes=True) as cluster:
        print(f"{cluster}\n{cluster.cluster_spec}\n")
        strategy = tfps.ParameterServerStrategy(cluster)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((8, 8)),
                    keras.layers.Flatten(),
                    keras.layers.Dense(128, activation="relu"),
                    keras.layers.Dropout(0.2),
                    keras.layers.Dense(10),
                ]
            )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
        train = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(2000, seed=0).batch(32)
        model.fit(train, epochs=20, shuffle=False, verbose=2)  # the dataset shuffles; Keras warns of a second time
        _, accuracy = model.evaluate(x_test, y_test, verbose=0)

        print(f"\nAccuracy on {len(x_test)} digits the model has not seen: {accuracy:.3f}\n")
        print(tfps.placement(model))
        print("\nWhat each worker did")
        for worker, steps in sorted(model.train_function.steps_by_worker.items()):
            print(f"  /job:worker/task:{worker} at {cluster.cluster_spec['worker'][worker]}: {steps} training steps")
        steps = int(model.optimizer.iterations)
        print(f"  together {sum(model.train_function.steps_by_worker.values())}; the optimizer counted {steps}")


if __name__ == "__main__":
    main()
