"""Reports on runs: an HTML page and a video of an episode."""

from rookery.report.page import learning_curve_frame, write_report
from rookery.report.video import write_video

__all__ = ["learning_curve_frame", "write_report", "write_video"]
