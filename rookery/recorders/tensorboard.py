"""Records as TensorBoard events over env steps."""

import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from rookery.recorders.appended_file import AppendedFile
from rookery.recorders.rows import ENV_STEPS, SEED, plotted_metrics
from rookery.runs.directory import RunDirectory
from rookery.runs.files import make_folder
from rookery.runs.recorder import Position, Recorder, RunDescription

FILE_PREFIX = "events.out.tfevents."


class TensorBoardRecorder(Recorder):
    """Writes to `tensorboard/` in the run directory; each of several seeds is a run, `seed_0`, `seed_1`, ..."""

    def __init__(self) -> None:
        self._files: dict[int, EventFile] = {}

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        if run.directory is None:
            return
        name = RunDirectory(run.directory).tensorboard_path.name
        for index, seed in enumerate(run.seeds):
            first_step = 0 if resumed_from is None else resumed_from.first_discarded_step(index)
            folder = make_folder(run.directory, f"{name}/seed_{seed}" if len(run.seeds) > 1 else name)
            self._files[seed] = EventFile(folder, first_step)

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
    """A new file of TensorBoard events; older files in the folder are read only for steps before `first_step`.

    tensorboardX's `SummaryWriter` does not fit: its `flush` does not wait for its queue, so a checkpoint could be
    complete before its records are on disk. Its files are named by the second, so a run resumed within a second would
    overwrite its records.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        # TensorBoard reads the files of a folder in alphabetical order.
        older = (re.match(rf"{FILE_PREFIX}(\d+)", path.name) for path in folder.iterdir())
        seconds = max([int(time.time()), *(int(match[1]) + 1 for match in older if match)])  # a clock may be set back
        self._file = AppendedFile(folder / f"{FILE_PREFIX}{seconds}.{socket.gethostname()}")
        self._write(Event(file_version="brain.Event:2"))
        # New runs write this too: one of TensorBoard's readers does not treat the first START event as a restart.
        self._write(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Append one value to each named curve."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def sync(self) -> None:
        """Flush the written events to disk."""
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
