"""Keras on a parameter-server strategy, from the batch that comes in to the logs that go out.

The path of a step: `epochs` reads a batch, `run` sends it out, `step` is what the worker runs, with variables read
through `reads` and written through `writes`, metrics kept by `metrics`, seeds from `seeds`; `logs` adds up what comes
back. `hooks` lists every place where Keras or TensorFlow is asked to come here.
"""
