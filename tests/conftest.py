"""Fixtures for all tests: one cluster in this process at a time, and a clean environment.

TensorFlow connects a process to one cluster at a time, so a test asks for one with the number of workers it needs, and
gets a new one only if the last had another number.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import keras
import numpy as np
import pytest

import tfps

_clusters: list[tuple[int, tfps.LocalCluster, tfps.ParameterServerStrategy]] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests in the order of the workers they need: servers inside a process never stop, so few are made."""
    items.sort(key=_workers_needed)


def _workers_needed(item: pytest.Item) -> int:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    named = {"one_worker": 1, "three_workers": 3, "strategy": parameters.get("strategy", 0)}
    needed = [workers for name, workers in named.items() if name in getattr(item, "fixturenames", ())]
    return max([*needed, parameters.get("workers", 0)])


@pytest.fixture(scope="module")
def connect() -> Callable[[int], tfps.ParameterServerStrategy]:
    """Makes a strategy over that many workers and two parameter servers."""

    def strategy_of(workers: int) -> tfps.ParameterServerStrategy:
        if not _clusters or _clusters[-1][0] != workers:
            cluster = tfps.LocalCluster(workers=workers, ps=2)
            _clusters.append((workers, cluster, tfps.ParameterServerStrategy(cluster)))
        return _clusters[-1][2]

    return strategy_of


@pytest.fixture
def one_worker(connect: Callable[[int], tfps.ParameterServerStrategy]) -> tfps.ParameterServerStrategy:
    return connect(1)


@pytest.fixture
def three_workers(connect: Callable[[int], tfps.ParameterServerStrategy]) -> tfps.ParameterServerStrategy:
    return connect(3)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(7)


@pytest.fixture(autouse=True)
def _no_cluster_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name == "TF_CONFIG" or name.startswith(("SM_", "SLURM_")):
            monkeypatch.delenv(name)


@pytest.fixture
def samples() -> tuple[np.ndarray, np.ndarray]:
    """103 examples of 20 features in 3 classes: the last batch is short for most batch sizes."""
    random = np.random.default_rng(0)
    return random.normal(size=(103, 20)).astype("float32"), random.integers(0, 3, size=103)
