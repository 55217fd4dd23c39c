"""Canvas and colors for rendering the classic control environments."""

from collections.abc import Sequence

import jax
import numpy as np
from PIL import Image, ImageDraw

from rookery.errors import ShapeError
from rookery.types import PyTreeData

WIDTH, HEIGHT = 600, 400
SUPERSAMPLING = 2

Color = tuple[int, int, int]
Point = tuple[float, float]

BACKGROUND: Color = (250, 249, 246)
GROUND: Color = (216, 222, 228)
FAINT: Color = (230, 233, 236)
STEEL: Color = (148, 160, 172)
INK: Color = (44, 56, 72)
BLUE: Color = (52, 113, 188)
ORANGE: Color = (232, 134, 52)
GREEN: Color = (58, 158, 104)
RED: Color = (212, 86, 80)


class Canvas:
    """An image of 600 x 400 pixels, drawn at twice that size and scaled down for smooth edges.

    Points are in the units of the simulation with y upwards; widths and radii are in pixels of the final image.
    `origin` is the pixel of the point (0, 0), from the top left corner.
    """

    def __init__(self, origin: Point, pixels_per_unit: float) -> None:
        self._image = Image.new("RGB", (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING), BACKGROUND)
        self._draw = ImageDraw.Draw(self._image)
        self._origin = origin
        self._pixels_per_unit = pixels_per_unit

    def segment(self, start: Point, end: Point, width: float, color: Color) -> None:
        """Draw a straight line with round ends."""
        self.curve([start, end], width, color)
        cap_radius = width / 2 - 0.5 / SUPERSAMPLING  # a circle is one pixel wider than its diameter
        self.circle(start, cap_radius, color)
        self.circle(end, cap_radius, color)

    def curve(self, points: Sequence[Point], width: float, color: Color) -> None:
        """Draw a line through the points, with flat ends."""
        self._draw.line([self._pixel(point) for point in points], color, round(width * SUPERSAMPLING), joint="curve")

    def dashed(self, start: Point, end: Point, width: float, color: Color, num_dashes: int) -> None:
        """Draw a straight line of `num_dashes` dashes with gaps of the same length."""
        ends = np.linspace(start, end, 2 * num_dashes).tolist()
        for dash_start, dash_end in zip(ends[::2], ends[1::2], strict=True):
            self.curve([dash_start, dash_end], width, color)

    def circle(self, center: Point, radius: float, color: Color) -> None:
        """Draw a filled circle."""
        self._draw.circle(self._pixel(center), radius * SUPERSAMPLING, color)

    def ring(self, center: Point, radius: float, width: float, color: Color) -> None:
        """Draw the outline of a circle."""
        self._draw.circle(self._pixel(center), radius * SUPERSAMPLING, None, color, round(width * SUPERSAMPLING))

    def polygon(self, corners: Sequence[Point], color: Color) -> None:
        """Draw a filled polygon."""
        self._draw.polygon([self._pixel(corner) for corner in corners], color)

    def rounded_box(self, low: Point, high: Point, radius: float, color: Color) -> None:
        """Draw a filled rectangle with rounded corners between two opposite corners."""
        (left, bottom), (right, top) = self._pixel(low), self._pixel(high)
        self._draw.rounded_rectangle([left, top, right, bottom], radius * SUPERSAMPLING, color)

    def pixels(self) -> np.ndarray:
        """Return the final image, `uint8[400, 600, 3]`."""
        return np.array(self._image.reduce(SUPERSAMPLING))

    def _pixel(self, point: Sequence[float]) -> Point:
        x = self._origin[0] + point[0] * self._pixels_per_unit
        y = self._origin[1] - point[1] * self._pixels_per_unit
        return x * SUPERSAMPLING, y * SUPERSAMPLING


def fields_of_one(state: PyTreeData) -> list[float]:
    """Return the fields of the simulator state of one env as numbers, in the order of declaration."""
    fields = jax.device_get(jax.tree.leaves(state))
    for field in fields:
        if np.ndim(field):
            raise ShapeError(
                f"render takes one env, but the state has the leading axes {list(np.shape(field))}: "
                "select one with jax.tree.map(lambda leaf: leaf[0], env_state)."
            )
    return [float(field) for field in fields]
