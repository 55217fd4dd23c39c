"""The records of a run as TensorBoard events, over env steps."""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from rookery.recorders.recorder import (
    ENV_STEPS,
    SEED,
    AppendedFile,
    Position,
    Recorder,
    RunDescription,
    plotted_metrics,
)
from rookery.runs.directory import RunDirectory

FILE_PREFIX = "events.out.tfevents."


class TensorBoardRecorder(Recorder):
    """Writes to `tensorboard/` in the run directory; several seeds are runs of their own, `seed_0`, `seed_1`, ..."""

    def __init__(self) -> None:
        self._files: dict[int, EventFile] = {}

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        if run.directory is None:
            return
        folder = RunDirectory(run.directory).tensorboard_path
        for index, seed in enumerate(run.seeds):
            first_step = 0 if resumed_from is None else resumed_from.first_forgotten_step(index)
            self._files[seed] = EventFile(folder / f"seed_{seed}" if len(run.seeds) > 1 else folder, first_step)

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        if not self._files:
            return
        for row in rows:
            self._files[int(row[SEED])].add(plotted_metrics(row), int(row[ENV_STEPS]))

    def sync(self) -> None:
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


class EventFile:
    """A new file of TensorBoard events, in a folder whose older files count only for steps before `first_step`.

    tensorboardX's own `SummaryWriter` passes events through a queue that its `flush` does not wait for, so a
    checkpoint could be listed before the records it counts on; and its files are named by the second, so a run resumed
    at once would overwrite its own past.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        num_older = len(list(folder.glob(f"{FILE_PREFIX}*")))
        self._file = AppendedFile(folder / f"{FILE_PREFIX}{int(time.time())}.{socket.gethostname()}.{num_older:06d}")
        self._write(Event(file_version="brain.Event:2"))
        # A new run says this too: one of TensorBoard's readers takes the first start that it meets for no restart.
        self._write(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Append one value to each of the named curves."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def sync(self) -> None:
        """Put what was written on disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
        self._file.write(length + checksums[0] + data + checksums[1])
