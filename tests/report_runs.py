"""Run directories with made-up learning curves, for the tests of the report."""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rookery.runs.directory import RunDirectory

TOTAL_TIMESTEPS = 500_000
TIMING = {
    "compile_seconds": 4.0,
    "train_seconds": 8.0,
    "evaluate_seconds": 1.0,
    "collect_share": 0.25,
    "env_steps": TOTAL_TIMESTEPS,
}


def write_run(
    path: Path,
    rows: Iterable[Mapping[str, Any]] | None = None,
    agent: Mapping[str, Any] | None = None,
    timing: Mapping[str, float] | None = TIMING,
    episode: bool = True,
    num_seeds: int = 1,
) -> RunDirectory:
    """Write a run directory; `rows` are the lines of its metrics, by default those of `learning_rows`."""
    config = {
        "agent": {"name": "ppo", "learning_rate": 3e-4, "network": {"hidden_sizes": [64, 64]}, **(agent or {})},
        "env": {"name": "classic/cartpole", "kwargs": {}},
        "num_seeds": num_seeds,
        "total_timesteps": TOTAL_TIMESTEPS,
    }
    run = RunDirectory.create(path, config, backend="cpu", devices=["cpu:0"])
    lines = (json.dumps(row) for row in (learning_rows(num_seeds) if rows is None else rows))
    run.metrics_path.write_text("".join(f"{line}\n" for line in lines))
    if timing is not None:
        run.timing_path.write_text(json.dumps(timing))
    if episode:
        run.episode_path.write_bytes(animation())
    return run


def learning_rows(num_seeds: int = 1, num_records: int = 50) -> list[dict[str, Any]]:
    """Make records in which the return of seed `s` rises evenly to `400 + s`, with ten evaluations."""
    noise = np.random.default_rng(0)
    rows = []
    for record in range(1, num_records + 1):
        done = record / num_records
        for seed in range(num_seeds):
            row = {
                "seed": seed,
                "time/total_timesteps": round(TOTAL_TIMESTEPS * done),
                "time/iterations": record,
                "rollout/ep_rew_mean": (400.0 + seed) * done,
                "rollout/ep_len_mean": (400.0 + seed) * done,
                "time/fps": 60_000.0,
                "time/time_elapsed": 4.0 + 9.0 * done,
            }
            for name in ("loss", "value_loss", "policy_gradient_loss", "entropy_loss", "approx_kl", "learning_rate"):
                row[f"train/{name}"] = float(noise.normal())
            if record % (num_records // 10) == 0:
                row["eval/mean_reward"] = (400.0 + seed) * done + 10.0
            rows.append(row)
    return rows


def animation() -> bytes:
    """Make a small animated GIF: a bright column that walks from left to right."""
    pictures = []
    for column in range(8):
        pixels = np.zeros((24, 32, 3), np.uint8)
        pixels[:, 4 * column : 4 * column + 4] = 255
        pictures.append(Image.fromarray(pixels))
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=100, loop=0)
    return file.getvalue()
