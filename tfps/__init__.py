"""Parameter-server training for Keras 3.

Importing tfps makes Keras's `fit`, `evaluate` and `predict` work for every model that is made under a
`tf.distribute.ParameterServerStrategy`, TensorFlow's own or this package's, and changes nothing else.
"""

from tfps import _versions as _versions  # first: it refuses what the rest would only fail on
from tfps.cluster.local import LocalCluster
from tfps.cluster.sources import cluster_resolver
from tfps.reports.placement import PlacementReport, placement
from tfps.strategy import ParameterServerStrategy
from tfps.training.hooks import install as _install

__all__ = ["LocalCluster", "ParameterServerStrategy", "PlacementReport", "cluster_resolver", "placement"]
__version__ = "0.1.0"

_install()
