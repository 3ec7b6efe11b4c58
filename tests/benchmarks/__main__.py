"""Print the benchmark table: steps per second side by side, each contender in a process of its own, in turn.

The contenders take turns, several rounds, and the best round of each counts, so that a busy moment of the machine
does not decide. Read the ratios; the machine's speed is in all of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

CONTENDERS = ("tfps", "tf_keras", "local")


def steps_per_second(how: str, model: str, steps_per_execution: int) -> float:
    """What one contender reaches in one run."""
    command = [sys.executable, "-m", "tests.benchmarks.contender", how, "--model", model]
    command += ["--steps-per-execution", str(steps_per_execution)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{run.stderr[-3000:]}")
    return float(run.stdout.split("steps/s")[-1])


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--models", nargs="+", default=["small"], choices=["small", "chain"])
    options = arguments.parse_args()
    print("3 workers, 2 parameter servers, in process; batch 32; steps per second, best epoch of the best round")
    print(f"{'model':8}{'steps/execution':>16}{'tfps':>9}{'tf_keras':>10}{'local':>9}{'tfps/tf_keras':>15}")
    for model in options.models:
        for steps_per_execution in (1, 10):
            best = dict.fromkeys(CONTENDERS, 0.0)
            for _ in range(options.rounds):
                for how in CONTENDERS:
                    best[how] = max(best[how], steps_per_second(how, model, steps_per_execution))
            ratio = best["tfps"] / best["tf_keras"]
            row = f"{best['tfps']:>9.0f}{best['tf_keras']:>10.0f}{best['local']:>9.0f}{ratio:>15.2f}"
            print(f"{model:8}{steps_per_execution:>16}{row}", flush=True)


if __name__ == "__main__":
    main()
