"""Arithmetic that can be compared to the last bit.

TensorFlow reorders arithmetic by the whole of a graph and by the names in it, and a step's graph has parts a local one
has not, so the last bits may differ although every operation is the same. It is told not to here, before any strategy
is made, since each of a coordinator's threads keeps the options it first ran with.
"""

import tensorflow as tf

tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False, "constant_folding": False})
