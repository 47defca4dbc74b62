"""Changing a GGUF file's metadata: gguf's own script, which writes every tensor anew, or `extend`.

    python recipes/bench/gguf_speed.py MODEL.gguf [--runs 5]

Each run is a process of its own and writes a whole file; what is printed is the median of its time
and its peak memory, the two ways taken in turns.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path


def commands(model: Path, target: Path) -> dict[str, list[str]]:
    """Both ways, as arguments of this Python."""
    script = ["-m", "gguf.scripts.gguf_new_metadata", "--force", "--general-description", "longer"]
    ours = ["-m", "ropepatch_cli", "extend", "--model", str(model), "--method", "yarn"]
    return {
        "gguf_new_metadata.py": [*script, str(model), str(target)],
        "ropepatch extend": [*ours, "--factor", "4", "--output", str(target)],
    }


def measured(arguments: list[str]) -> tuple[float, float]:
    """Seconds, and MiB at the peak."""
    started = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
    )
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(f"gguf_speed: {' '.join(arguments)} failed")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=asked.model.absolute().parent) as folder:
        target = Path(folder, "changed.gguf")
        for _ in range(asked.runs):
            for way, arguments in commands(asked.model, target).items():
                found.setdefault(way, []).append(measured(arguments))
                target.unlink()
    medians = {
        way: [statistics.median(x) for x in zip(*all_, strict=True)] for way, all_ in found.items()
    }
    for way, (seconds, memory) in medians.items():
        print(f"{way:22} {seconds:7.2f} s {memory:9.0f} MiB")
    (slow, large), (fast, small) = medians.values()
    print(f"{slow / fast:.1f} times faster, 1/{large / small:.0f} of the memory")


if __name__ == "__main__":
    main()
