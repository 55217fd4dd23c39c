"""A process with a Ray of our own, killed with SIGKILL: Ray must end by itself, and the next run must clean up.

`python -m tests.campaigns.ray_orphans --count 3`. It takes up to two minutes for each.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rookery.runners.ray.folder import STALE_SECONDS, private_folder
from tests.ray.processes import children_of, processes_naming, program_environment

DEADLINE_SECONDS = 120.0
PROGRAM = """
import time
from rookery.runners.ray.cluster import connect
from rookery.runners.ray.settings import RaySettings

class Worker:
    def work(self):
        time.sleep(600)

with connect(RaySettings(), num_env_runners=2):
    import ray
    workers = [ray.remote(num_cpus=1)(Worker).remote() for _ in range(2)]
    ray.wait([worker.work.remote() for worker in workers], timeout=5)
    print(ray._private.worker._global_node.get_session_dir_path(), flush=True)
    time.sleep(600)
"""


def kill_once() -> tuple[float, bool]:
    """Return the seconds until all processes of Ray are gone, and whether the next Ray removed its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=program_environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip()).parents[1]
    started = children_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed_at = time.monotonic()
    while (left := alive(started, folder)) and time.monotonic() < killed_at + DEADLINE_SECONDS:
        time.sleep(0.2)
    seconds = time.monotonic() - killed_at
    if left:
        print(f"still there after {seconds:.0f} s: {left}")
    before = time.time() - 2 * STALE_SECONDS
    os.utime(folder, (before, before))
    with private_folder():
        return seconds, not left and not folder.exists()


def alive(started: list[int], folder: Path) -> list[int]:
    named = set(processes_naming(str(folder)))
    return [process for process in started if process in named]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3)
    outcomes = [kill_once() for _ in range(parser.parse_args().count)]
    for seconds, held in outcomes:
        print(f"{'held' if held else 'FAILED'}: nothing left after {seconds:.1f} s")
    return 0 if all(held for _, held in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
