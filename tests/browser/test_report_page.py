"""The report in Chromium: it loads alone, fits laptop and phone, shows values, and runs nobody's text."""

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

from rookery.report import write_report
from tests.report_runs import learning_rows, write_run
from tests.unit.report.evolved_runs import cvt_archive, evolution_rows, front, grid_archive, write_evolved_run
from tests.unit.report.runs_on_ray import write_run_on_ray

LAPTOP, PHONE = 1366, 390
HOSTILE = "</script><script>alert(1)</script>\"' & <img src=x onerror=alert(1)>"

widths = pytest.mark.parametrize("width", [LAPTOP, PHONE])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        pytest.skip("no Chromium on this machine")
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report_of_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    return write_report([write_run(folder / "run", num_seeds=4)], folder / "report.html")


@pytest.fixture(scope="module")
def report_of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: several seeds, one seed, and one that is still going."""
    folder = tmp_path_factory.mktemp("three")
    runs = [
        write_run(folder / "first-run-with-a-long-name-20250701-101500", num_seeds=4),
        write_run(folder / "second", agent={"learning_rate": 1e-2}, episode=False),
        write_run(folder / "third", learning_rows()[:20], timing=None, episode=False),
    ]
    return write_report(runs, folder / "report.html")


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    rows = [{**row, f"train/{HOSTILE}": 1.0} for row in learning_rows()]
    agent = {"name": HOSTILE, HOSTILE: HOSTILE, "endless": "x" * 500}
    names = ("<img src=x onerror=alert(1)>", "'\"&" + 200 * "x")
    runs = [write_run(folder / name, rows, agent=agent) for name in names]
    axes = [HOSTILE, "x" * 500]
    runs.append(write_evolved_run(folder / "front", evolution_rows(), [{**front(), "axes": axes}]))
    runs.append(write_evolved_run(folder / "archive", evolution_rows(), [{**grid_archive((4, 4)), "axes": axes}]))
    runs.append(write_evolved_run(folder / "damaged", evolution_rows(), [{"kind": HOSTILE}]))
    return write_report(runs, folder / "report.html")


@pytest.fixture(scope="module")
def report_of_evolution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A front of two seeds, a grid, a grid with one descriptor, scattered cells, and a file that is damaged."""
    folder = tmp_path_factory.mktemp("evolution")
    several = evolution_rows(num_seeds=2, quantities=("objective_0", "objective_1"))
    runs = [
        write_evolved_run(folder / "front", several, [front(), front(seed=1)], num_seeds=2),
        write_evolved_run(folder / "grid", evolution_rows(), [grid_archive((4, 4))]),
        write_evolved_run(folder / "line", evolution_rows(), [grid_archive((12,))]),
        write_evolved_run(folder / "scattered", evolution_rows(), [cvt_archive()]),
        write_evolved_run(folder / "damaged", evolution_rows(), {"not": "a list"}),
    ]
    return write_report(runs, folder / "report.html")


@pytest.fixture(scope="module")
def report_on_ray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    runs = [write_run_on_ray(folder / "on-ray", num_restarts=3), write_run(folder / "device")]
    return write_report(runs, folder / "report.html")


@dataclass
class Visit:
    """A page that was loaded, and what happened meanwhile that should not."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def visit(browser: Browser, path: Path, width: int, **options: Any) -> Iterator[Visit]:
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    visit = Visit(page)

    def record(request: Request) -> None:
        visit.requests.append(request.url)

    page.on("request", record)
    page.on("console", lambda message: visit.complaints.append(message.text))
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (visit.complaints.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri(), wait_until="load")
    try:
        yield visit
        assert visit.complaints == []
        assert all(url.startswith("data:") or url == path.as_uri() for url in visit.requests)
    finally:
        page.close()


@widths
@pytest.mark.parametrize(
    "report", ["report_of_one", "report_of_three", "hostile_report", "report_of_evolution", "report_on_ray"]
)
def test_the_page_loads_alone_without_complaint_and_fits_the_width(
    browser: Browser, request: pytest.FixtureRequest, report: str, width: int
) -> None:
    with visit(browser, request.getfixturevalue(report), width) as visited:
        assert visited.page.evaluate("document.documentElement.scrollWidth") == width
        parts = "h2, h3, p, figure, .plot, .x-label, .y-label, .color-bar, .cards, img, .table-box"
        outside = f"""() => [...document.querySelectorAll("main :is({parts})")]
            .filter((element) => element.getBoundingClientRect().right > innerWidth).length"""
        assert visited.page.evaluate(outside) == 0


@widths
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_against_its_background(
    browser: Browser, report_of_three: Path, width: int, scheme: str
) -> None:
    luminance = """(color) => {
        const linear = color.match(/[\\d.]+/g).slice(0, 3)
            .map((part) => part / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    }"""
    contrast = f"""(selector) => {{
        const luminance = {luminance};
        const element = document.querySelector(selector);
        let behind = element;
        while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
        const [low, high] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor]
            .map(luminance).sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    }}"""
    with visit(browser, report_of_three, width, color_scheme=scheme) as visited:
        for selector in ("h1", "header p", ".note", ".y-tick", "td", "thead th", ".differs td", "button", ".legend li"):
            assert visited.page.evaluate(contrast, selector) >= 4.5, selector
        is_dark = visited.page.evaluate(f"({luminance})(getComputedStyle(document.body).backgroundColor)") < 0.2
        assert is_dark == (scheme == "dark")


@widths
def test_the_pointer_shows_the_value_of_the_nearest_record(browser: Browser, report_of_one: Path, width: int) -> None:
    with visit(browser, report_of_one, width) as visited:
        plot = visited.page.locator("figure", has_text="Evaluation return").locator(".plot")
        area = plot.locator("svg").bounding_box()
        # The axis ends at 500,000 steps, and there is an evaluation every 50,000.
        plot.hover(position={"x": area["x"] - plot.bounding_box()["x"] + 0.41 * area["width"], "y": 100})
        tooltip = plot.locator(".tooltip")
        assert tooltip.is_visible()
        assert tooltip.locator("strong").inner_text() == "200,000 env steps"
        # Seeds 0 to 3 have 0.4 * (400 + seed) + 10.
        assert tooltip.locator("b").inner_text() == "170.6"
        assert tooltip.locator(".interval").inner_text() == "170 to 171.2"
        visited.page.mouse.move(5, 5)
        assert tooltip.is_hidden()


@widths
def test_the_pointer_shows_all_runs_by_name_beside_the_curves_and_inside_the_page(
    browser: Browser, report_of_three: Path, width: int
) -> None:
    with visit(browser, report_of_three, width) as visited:
        plot = visited.page.locator("figure", has_text="Training return").locator(".plot")
        plot.hover()
        tooltip = plot.locator(".tooltip")
        for name in ("first-run-with-a-long-name-20250701-101500", "second", "third"):
            assert tooltip.get_by_text(name, exact=True).is_visible()
        box, area = tooltip.bounding_box(), plot.locator("svg").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= area["y"] or box["y"] >= area["y"] + area["height"]


def test_the_arrow_keys_move_from_record_to_record(browser: Browser, report_of_one: Path) -> None:
    with visit(browser, report_of_one, LAPTOP) as visited:
        plot = visited.page.locator("figure", has_text="Evaluation return").locator(".plot")
        plot.focus()
        shown = []
        for key in ("End", "ArrowLeft", "ArrowLeft", "Home", "ArrowLeft", "ArrowRight"):
            plot.press(key)
            shown.append(plot.locator(".tooltip strong").inner_text().split()[0])
        assert shown == ["500,000", "450,000", "400,000", "50,000", "50,000", "100,000"]
        plot.press("Escape")
        assert plot.locator(".tooltip").is_hidden()


@widths
def test_the_pointer_shows_the_cell_it_is_over(browser: Browser, report_of_evolution: Path, width: int) -> None:
    with visit(browser, report_of_evolution, width) as visited:
        plot = visited.page.locator("figure", has_text="Archive of grid").locator(".plot")
        box, area = plot.bounding_box(), plot.locator("svg").bounding_box()

        def shown(across: float, up: float) -> list[str]:
            x, y = area["x"] - box["x"] + across * area["width"], area["y"] - box["y"] + (1.0 - up) * area["height"]
            plot.hover(position={"x": x, "y": y})
            tooltip = plot.locator(".tooltip")
            assert tooltip.bounding_box()["x"] >= 0
            assert tooltip.bounding_box()["x"] + tooltip.bounding_box()["width"] <= width
            return tooltip.locator("b").all_inner_texts()

        # Four cells between -2.4 and 2.4 along each descriptor: the third from the left, the second from below.
        assert shown(0.7, 0.3) == ["0.6", "-0.6", "250"]
        assert shown(0.05, 0.05) == ["-1.8", "-1.8", "—"]


def test_the_arrow_keys_move_from_individual_to_individual(browser: Browser, report_of_evolution: Path) -> None:
    with visit(browser, report_of_evolution, LAPTOP) as visited:
        plot = visited.page.locator("figure", has_text="Path of the center of front").locator(".plot")
        plot.focus()
        shown = []
        for key in ("End", "Home", "ArrowRight"):
            plot.press(key)
            shown.append([plot.locator(".tooltip strong").inner_text(), *plot.locator("b").all_inner_texts()])
        assert shown == [["seed 1", "60", "3,601", "60"], ["seed 0", "1", "1", "1"], ["seed 0", "2", "4", "2"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_color_of_an_archive_shows_against_empty_cells(
    browser: Browser, report_of_evolution: Path, scheme: str
) -> None:
    with visit(browser, report_of_evolution, LAPTOP, color_scheme=scheme) as visited:
        figure = visited.page.locator("figure", has_text="Archive of grid")
        fill = "shapes => shapes.map((shape) => getComputedStyle(shape).fill.match(/\\d+/g).map(Number))"
        (empty,) = figure.locator(".plot rect.empty").evaluate_all(fill)
        colors = figure.locator(".plot path.tiles, .color-bar rect:not(.empty)").evaluate_all(fill)
        assert len(colors) > 61
        for color in colors:
            assert math.dist(color, empty) > 60


def test_figures_of_evolution_can_be_told_without_being_seen(browser: Browser, report_of_evolution: Path) -> None:
    with visit(browser, report_of_evolution, LAPTOP) as visited:
        for label in (
            "Fitness in the population of grid over generations. max: from 50 to 640; median: from 30 to 620; "
            "min: from 10 to 600",
            "Path of the center of grid, parameter 1 over parameter 0. seed 0: from (1, 1) to (60, 3,600)",
            "Pareto front of front, last:obs[0] over sum:reward. seed 0: 20 of 60 individuals on the front; "
            "seed 1: 20 of 60 individuals on the front",
            "Archive of line, by last:obs[0]. 8 of 12 cells filled, fitness from 136.4 to 263.6",
        ):
            assert visited.page.get_by_role("img", name=label, exact=True).is_visible(), label


def test_every_run_has_an_entry_of_its_own_color_in_the_legend(browser: Browser, report_of_three: Path) -> None:
    with visit(browser, report_of_three, LAPTOP) as visited:
        entries = visited.page.get_by_role("list", name="Runs").first.locator("li")
        assert entries.all_inner_texts() == ["first-run-with-a-long-name-20250701-101500", "second", "third"]
        colors = entries.locator("path").evaluate_all("paths => paths.map((path) => getComputedStyle(path).stroke)")
        curves = visited.page.locator("figure", has_text="Training return").locator("path.center")
        assert curves.evaluate_all("paths => paths.map((path) => getComputedStyle(path).stroke)") == colors
        assert len(set(colors)) == 3


def test_the_recorded_episode_plays_and_can_be_stopped(browser: Browser, report_of_one: Path) -> None:
    with visit(browser, report_of_one, LAPTOP) as visited:
        figure = visited.page.locator("figure.episode")
        assert figure.locator("img").evaluate("image => image.complete && image.naturalWidth") == 32
        assert figure.locator("canvas").is_hidden()
        figure.get_by_role("button", name="Pause").click()
        assert figure.locator("canvas").is_visible()
        drawn = "canvas => Math.max(...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"
        assert figure.locator("canvas").evaluate(drawn) == 255
        assert figure.locator("canvas").bounding_box() == figure.locator("img").bounding_box()
        figure.get_by_role("button", name="Play").click()
        assert figure.locator("canvas").is_hidden()


def test_the_recorded_episode_waits_where_motion_is_unwanted(browser: Browser, report_of_one: Path) -> None:
    with visit(browser, report_of_one, LAPTOP, reduced_motion="reduce") as visited:
        visited.page.get_by_role("button", name="Play").wait_for()
        assert visited.page.locator("figure.episode canvas").is_visible()


def test_text_of_the_run_is_shown_and_not_run(browser: Browser, hostile_report: Path) -> None:
    with visit(browser, hostile_report, LAPTOP) as visited:
        assert visited.page.get_by_role("heading", name=HOSTILE).is_visible()
        for plot in visited.page.locator(".plot").all():
            plot.hover()
        assert visited.page.locator("[onerror], [onload], img:not([src^='data:'])").count() == 0


def test_a_printed_page_is_light_and_has_no_buttons(browser: Browser, report_of_one: Path) -> None:
    with visit(browser, report_of_one, LAPTOP, color_scheme="dark") as visited:
        visited.page.emulate_media(media="print")
        assert visited.page.get_by_role("button").count() == 0
        assert visited.page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 39, 51)"
