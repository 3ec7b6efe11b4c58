"""Python in a process of its own, with a hard limit: for what must happen before a cluster is connected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(source: str, seconds: float = 110) -> Any:
    """Run Python source and return what it prints last, parsed as JSON.

    Raises:
        AssertionError: It failed; with what it wrote to standard error.
        subprocess.TimeoutExpired: It was not over in time, and was killed.
    """
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
