"""Reports on runs: an HTML page and a video of an episode."""

from rookery.report.page import write_report
from rookery.report.video import write_video

__all__ = ["write_report", "write_video"]
