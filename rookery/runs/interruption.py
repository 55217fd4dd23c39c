"""Stopping a run by a signal: the loop saves a checkpoint and exits."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal; `consequence` describes the result ("saved at step 8192 in runs/a").

    `state` is the training state at that moment. From `rookery.train`, `run` is the run so far.
    """

    run: Any = None

    def __init__(self, stopped_by: signal.Signals, consequence: str = "", state: Any = None) -> None:
        super().__init__(f"stopped by {stopped_by.name}{': ' if consequence else ''}{consequence}.")
        self.signal = stopped_by
        self.state = state

    @property
    def exit_code(self) -> int:
        """The exit code of a process killed by this signal."""
        return 128 + self.signal


class StopSignals:
    """Context that stores SIGTERM, SIGHUP and SIGINT in `requested` instead of stopping; a second one stops at once.

    A second SIGTERM or SIGHUP kills the process, because the loop may wait for an environment that never answers.
    Signals reach only the main thread of a process: in other threads the context does nothing. A signal that the
    process already ignores (`nohup`, a background job) stays ignored.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        """The first signal received, or None."""
        self._num_interrupts = 0
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                previous = signal.getsignal(number)
                if previous is not signal.SIG_IGN:
                    self._previous[number] = previous
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = self.requested or signal.Signals(number)
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            return
        self._num_interrupts += 1
        if self._num_interrupts > 1:
            raise KeyboardInterrupt
