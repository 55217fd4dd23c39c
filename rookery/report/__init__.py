"""What came out of runs: a page to read, and an episode to watch."""

from rookery.report.page import write_report
from rookery.report.video import write_video

__all__ = ["write_report", "write_video"]
