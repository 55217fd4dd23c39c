"""The page: what it says about runs, whole and broken, and that it needs nothing but itself."""

import base64
import html
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.report import write_report
from rookery.runs.directory import RunDirectory
from tests.report_runs import TIMING, animation, learning_rows, write_run

HOSTILE = "</script><script>alert(1)</script>\"' & <img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """The structure of a page; every element that is opened must be closed in order."""

    VOID = ("img", "link", "meta")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.headings: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "data", "action") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data + "\n"
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


def report(path: Path, *runs: RunDirectory) -> Page:
    return Page(write_report(runs, path / "out" / "report.html").read_text())


def test_one_run_is_reported_whole(tmp_path: Path) -> None:
    page = report(tmp_path, write_run(tmp_path / "first", num_seeds=4))
    for heading in (
        "ppo on classic/cartpole",
        "Learning curves",
        "Evaluation return",
        "Training return",
        "Episode length in training",
        "Recorded episode",
        "value_loss",
        "Where the time went",
        "Configuration",
        "agent.network",
        "Versions and machine",
    ):
        assert heading in page.headings
    for text in (
        "hidden_sizes",
        "[64, 64]",
        "0.0003",
        "jaxlib",
        "compile 4.0 s",
        "collect 2.0 s",
        "learn 6.0 s",
    ):
        assert text in page.text


def test_the_headline_figures_are_those_of_the_records(tmp_path: Path) -> None:
    page = report(tmp_path, write_run(tmp_path / "first", num_seeds=4))
    # Four seeds end at 410, 411, 412 and 413: the middle two remain of the interquartile mean.
    assert "Final evaluation return\n411.5\n" in page.text
    assert re.search(r"95 % interval 410(\.\d+)? to 413\n", page.text)
    assert "Best evaluation return\n411.5\nat 500,000 steps\n" in page.text
    assert "Env steps per seed\n500,000\n" in page.text
    assert "Wall time\n13 s\nof which compilation 4.0 s\n" in page.text
    assert "Steps per second\n250,000\n" in page.text


def test_a_diverged_seed_is_named_and_does_not_vanish_from_the_mean(tmp_path: Path) -> None:
    rows = learning_rows(num_seeds=4)
    for row in rows:
        if row["seed"] >= 2 and row["time/total_timesteps"] >= 200_000:
            row |= {"train/diverged": 1.0, "eval/mean_reward": "NaN"}
    run = write_run(tmp_path / "first", rows, num_seeds=4)
    page = report(tmp_path, run)
    assert re.search(
        r"Final evaluation return\n410.5\nIQM, 95 % interval 410 to 411; 2 of 4 seeds diverged\n", page.text
    )
    assert "Seeds\n4\n2 of 4 seeds diverged\n" in page.text
    assert "seed 2 at 200,000 env steps, seed 3 at 200,000 env steps" in page.text
    compared = report(tmp_path, run, write_run(tmp_path / "second"))
    assert "4, 2 diverged" in compared.text


def test_a_run_whose_seeds_all_diverged_has_no_return(tmp_path: Path) -> None:
    rows = learning_rows()
    rows[-1]["train/diverged"] = 1.0
    page = report(tmp_path, write_run(tmp_path / "first", rows))
    assert "Final evaluation return\n—\none seed: no interval; 1 of 1 seeds diverged\n" in page.text


def test_seeds_that_differ_in_env_steps_show_the_range(tmp_path: Path) -> None:
    rows = learning_rows(num_seeds=2)
    for row in rows:
        row["time/total_timesteps"] += 1000 * row["seed"]
    page = report(tmp_path, write_run(tmp_path / "first", rows, num_seeds=2))
    assert "Env steps per seed\n500,000 to 501,000\n" in page.text


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    page = report(tmp_path, write_run(tmp_path / "first"))
    assert "one seed: no interval" in page.text
    assert "bootstrap" not in page.text


def test_seeds_that_diverged_are_named_and_not_passed_over(tmp_path: Path) -> None:
    rows = learning_rows(num_seeds=4)
    for row in rows:
        if row["seed"] == 2:
            row["eval/mean_reward"] = "NaN"
            row["train/loss"] = "Infinity"
    page = report(tmp_path, write_run(tmp_path / "first", rows, num_seeds=4))
    assert "finite in 3 of 4 seeds" in page.text
    assert page.text.count("Values omitted because they are NaN or infinite: 50.") == 2


def test_a_run_that_is_still_going_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    rows = [row for row in learning_rows() if row["time/total_timesteps"] <= 300_000]
    page = report(tmp_path, write_run(tmp_path / "first", rows, timing=None, episode=False))
    assert "Env steps\n300,000\nof 500,000\n" in page.text
    assert "Durations are available when training is complete." in page.text
    assert "No episode was recorded." in page.text


def test_a_run_without_evaluation_says_so_and_shows_the_training(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "eval/mean_reward"} for row in learning_rows()]
    page = report(tmp_path, write_run(tmp_path / "first", rows))
    assert "No evaluation was recorded." in page.text
    assert "Final training return\n400\n" in page.text


def test_a_run_without_any_record_has_a_report(tmp_path: Path) -> None:
    page = report(tmp_path, write_run(tmp_path / "first", rows=[], timing=None, episode=False))
    assert "Env steps\n0\nof 500,000\n" in page.text
    assert "No training episode has ended." in page.text
    assert "Updates" not in page.headings
    assert "Throughput" not in page.headings
    assert "Configuration" in page.headings


def test_time_that_is_not_split_into_collecting_and_learning_is_shown_as_training(tmp_path: Path) -> None:
    timing = {name: value for name, value in TIMING.items() if name != "collect_share"}
    page = report(tmp_path, write_run(tmp_path / "first", timing=timing))
    assert "train 8.0 s" in page.text
    assert "collect" not in page.text


def test_several_runs_are_compared_and_their_differences_come_first(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "slow", agent={"learning_rate": 1e-4}),
        write_run(tmp_path / "fast", agent={"learning_rate": 1e-2}, num_seeds=3, timing=None),
    ]
    text = write_report(runs, tmp_path / "report.html").read_text()
    page = Page(text)
    assert "2 runs compared" in page.headings
    assert "agent.learning_rate=0.0001" in page.text
    assert "agent.learning_rate=0.01" in page.text
    marked = re.findall('<tr class="differs"><th scope="row">([^<]*)</th>', text)
    assert marked[:2] == ["agent.learning_rate", "num_seeds"]
    for legend in re.findall('<ul class="legend" aria-label="Runs">.*?</ul>', text):
        assert legend.count("<li>") == 2


def test_a_metric_that_only_one_run_has_names_the_others(tmp_path: Path) -> None:
    rows = [{**row, "train/own": 1.0} for row in learning_rows()]
    page = report(tmp_path, write_run(tmp_path / "with", rows), write_run(tmp_path / "without"))
    assert "own" in page.headings
    assert "Without values: without." in page.text


def test_what_environments_report_of_their_episodes_is_drawn(tmp_path: Path) -> None:
    own = {"rollout/success_rate": 0.5, "eval/success_rate": 0.5, "rollout/coins": 3.0}
    page = report(tmp_path, write_run(tmp_path / "own", [{**row, **own} for row in learning_rows()]))
    reported = {heading for heading in page.headings if heading.endswith((" in training", " in evaluation"))}
    assert reported == {
        "Episode length in training",
        "success rate in evaluation",
        "success rate in training",
        "coins in training",
    }


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    page = report(tmp_path, *(write_run(tmp_path / sweep / "0") for sweep in ("monday", "tuesday")))
    assert "monday/0" in page.text
    assert "tuesday/0" in page.text


def test_text_of_the_run_stays_text_everywhere(tmp_path: Path) -> None:
    rows = [{**row, f"train/{HOSTILE}": 1.0} for row in learning_rows()]
    agent = {"name": HOSTILE, HOSTILE: HOSTILE, "nested": {"list": [HOSTILE]}}
    plain = [write_run(tmp_path / name) for name in ("plain", "plain too")]
    hostile = [write_run(tmp_path / f"{name} <b>&'\"", rows, agent=agent) for name in ("first", "second")]
    hostile[0].manifest_path.write_text(
        hostile[0].manifest_path.read_text().replace('"backend": "cpu"', '"<script>": 1')
    )
    for with_plain, with_hostile in [(plain[:1], hostile[:1]), (plain, hostile)]:
        expected, page = report(tmp_path, *with_plain), report(tmp_path, *with_hostile)
        assert HOSTILE in page.text
        assert HOSTILE in page.headings
        # The hostile metric is one more figure with one more script of data; nothing else may appear.
        for tag in ("script", "img", "b"):
            assert page.tags.count(tag) == expected.tags.count(tag) + (tag == "script")


def test_a_folder_whose_name_is_no_text_can_be_reported(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff"))
    assert "run-?" in report(tmp_path, write_run(folder)).text


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    text = write_report([write_run(tmp_path / "first")], tmp_path / "report.html").read_text()
    assert all(reference.startswith("data:") for reference in Page(text).references)
    assert not re.search(r"url\(|@import|https?:", text)
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert f'content="{html.escape(policy)}"' in text


def test_the_recorded_episode_is_embedded_as_it_is(tmp_path: Path) -> None:
    text = write_report([write_run(tmp_path / "first")], tmp_path / "report.html").read_text()
    (encoded,) = re.findall('src="data:image/gif;base64,([^"]*)"', text)
    assert base64.b64decode(encoded) == animation()


def test_a_long_run_of_many_seeds_makes_a_page_of_less_than_a_megabyte_besides_its_episode(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    rows = learning_rows(num_seeds=32, num_records=1000)
    for row in rows:
        row["rollout/ep_rew_mean"] += noise.normal(scale=20.0)
    path = write_report([write_run(tmp_path / "first", rows, num_seeds=32)], tmp_path / "report.html")
    assert path.stat().st_size < 1_000_000


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", num_seeds=3)
    first, second = (write_report([run], tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_a_report_of_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="at least one run"):
        write_report([], tmp_path / "report.html")
