"""Memory of a long run: it stays flat over thousands of records, evaluations and checkpoints.

`python -m tests.campaigns.memory --count 2000` trains with one of each per iteration, and compares the memory of the
process after half of them with the memory at the end. `TMPDIR=/dev/shm` makes it faster.
"""

import argparse
import ctypes
import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from rookery.recorders import RECORDERS, Position, Recorder, RunDescription
from rookery.registry import build_workflow

ALLOWED_BYTES = 4_000
"""Growth per record, evaluation and checkpoint: freed memory is not returned to the system at once."""
STEPS = 16
KINDS: dict[str, dict[str, Any]] = {
    "device": {"agent": {"name": "a2c"}, "env": {"name": "classic/cartpole", "episode_length": 5}},
    "host": {"agent": {"name": "a2c"}, "env": {"name": "gymnasium/CartPole-v1", "episode_length": 5}},
}


class MemoryRecorder(Recorder):
    """Notes the memory of the process at some records, without what is free but not yet returned to the system."""

    interval: ClassVar[int] = 1
    num_records: ClassVar[int] = 0
    resident: ClassVar[dict[int, int]] = {}

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        self.resident.clear()
        type(self).num_records = 0

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        type(self).num_records += 1
        if self.num_records % self.interval == 0:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            self.resident[self.num_records] = resident_bytes()

    def close(self) -> None:
        pass


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def growth(kind: str, count: int, folder: Path) -> tuple[float, int]:
    """Train with `count` of each event; return the bytes per event in the second half, and the bytes at the end."""
    MemoryRecorder.interval = max(1, count // 20)
    RECORDERS["memory"] = f"{__name__}:MemoryRecorder"
    small = {"num_envs": 4, "rollout_length": STEPS // 4, "network": {"hidden_sizes": [4]}}
    config = {
        "agent": KINDS[kind]["agent"] | small,
        "env": KINDS[kind]["env"],
        "total_timesteps": count * STEPS,
        "record_interval": STEPS,
        "evaluation": {"interval": STEPS, "num_episodes": 2},
        "checkpoint": {"interval": STEPS},
        "run_dir": str(folder / kind),
        "recorders": ["jsonl", "tensorboard", "memory"],
    }
    workflow = build_workflow(config)
    try:
        workflow.learn(workflow.init(workflow.make_key()))
    finally:
        workflow.close()
    noted = list(MemoryRecorder.resident.items())
    (middle, bytes_then), (last, bytes_now) = noted[len(noted) // 2], noted[-1]
    return (bytes_now - bytes_then) / (last - middle), bytes_now


def main() -> int:
    from tests.campaigns import memory  # by its name, so that another process finds it

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000, help="records, evaluations and checkpoints of each kind")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    arguments = parser.parse_args()
    start, found = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.kinds:
            # In a process of its own: what another kind left behind in the heap would count.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                found[kind] = process.submit(memory.growth, kind, arguments.count, Path(folder)).result()
    figures = [f"{kind} {per_event / 1e3:+.2f} kB each, {end / 1e6:.0f} MB" for kind, (per_event, end) in found.items()]
    print(
        f"memory: {arguments.count} records, evaluations and checkpoints: {'; '.join(figures)}; "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if any(per_event > ALLOWED_BYTES for per_event, _ in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
