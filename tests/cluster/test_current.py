"""Which strategy may still be used, as clusters are closed and replaced."""

import weakref

import pytest
import tensorflow as tf

from tfps.cluster import current
from tfps.cluster.current import check_usable, connected, started
from tfps.errors import ClusterClosedError

HERE = tf.train.ClusterSpec({"worker": ["a:1"], "ps": ["b:1"]})
THERE = tf.train.ClusterSpec({"worker": ["a:1"], "ps": ["c:1"]})


class Strategy:
    """Nothing of a strategy counts here but which one it is."""


class Cluster:
    cluster_spec = HERE.as_dict()
    closed = False


@pytest.fixture(autouse=True)
def _nothing_connected(monkeypatch):
    monkeypatch.setattr(current, "_ordinal", 0)
    monkeypatch.setattr(current, "_spec", None)


def test_a_strategy_is_usable_until_another_cluster_is_connected():
    first, again, other = Strategy(), Strategy(), Strategy()
    connected(first, HERE)
    connected(again, HERE)
    check_usable(first)
    connected(other, THERE)
    check_usable(other)
    for strategy in (first, again):
        with pytest.raises(ClusterClosedError, match=r"connected to last\. Received: .* Make the strategy"):
            check_usable(strategy)


def test_coming_back_to_a_cluster_does_not_revive_what_was_there():
    first, other, back = Strategy(), Strategy(), Strategy()
    for strategy, spec in ((first, HERE), (other, THERE), (back, HERE)):
        connected(strategy, spec)
    check_usable(back)
    with pytest.raises(ClusterClosedError):
        check_usable(first)


def test_a_strategy_from_before_is_usable_until_another_connects():
    before, after = Strategy(), Strategy()
    check_usable(before)
    connected(after, HERE)
    with pytest.raises(ClusterClosedError):
        check_usable(before)


def test_a_closed_cluster_is_named():
    strategy, cluster = Strategy(), Cluster()
    connected(strategy, HERE, cluster)
    check_usable(strategy)
    cluster.closed = True
    with pytest.raises(ClusterClosedError, match=r"before its cluster is closed\. Received: .*Cluster"):
        check_usable(strategy)


def test_a_closed_cluster_is_found_by_its_addresses():
    strategy, elsewhere, cluster = Strategy(), Strategy(), Cluster()
    started(cluster)
    connected(elsewhere, THERE)
    connected(strategy, tf.train.ClusterSpec({**HERE.as_dict(), "chief": ["d:1"]}))
    check_usable(strategy)
    cluster.closed = True
    with pytest.raises(ClusterClosedError, match="before its cluster is closed"):
        check_usable(strategy)
    with pytest.raises(ClusterClosedError, match="connected to last"):
        check_usable(elsewhere)


def test_strategies_are_not_kept_alive():
    strategy = Strategy()
    connected(strategy, HERE)
    gone = weakref.ref(strategy)
    del strategy
    assert gone() is None
