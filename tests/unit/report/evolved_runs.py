"""Made-up records and populations of evolution, for the tests of the report."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rookery.runs.directory import RunDirectory
from tests.report_runs import write_run


def write_evolved_run(
    path: Path, rows: list[dict[str, Any]], populations: Any = None, num_seeds: int = 1, **options: Any
) -> RunDirectory:
    """Write a run directory with these records, and with `population.json` unless `populations` is None."""
    run = write_run(path, rows, num_seeds=num_seeds, **options)
    if populations is not None:
        run.population_path.write_text(json.dumps(populations))
    return run


def evolution_rows(
    num_seeds: int = 1, num_generations: int = 60, quantities: tuple[str, ...] = ("fitness",)
) -> list[dict[str, Any]]:
    """Make records of generations whose seeds differ in their env steps: at generation g, seed s has 1000 g + 100 s.

    The quantiles of generation g and seed s are 10 g + s plus 0, 10, 20, 30 and 40; the center is at g and g^2 + s.
    """
    rows = []
    for generation in range(1, num_generations + 1):
        for seed in range(num_seeds):
            row = {
                "seed": seed,
                "time/total_timesteps": 1000 * generation + 100 * seed,
                "time/iterations": generation,
                "rollout/ep_rew_mean": 10.0 * generation + seed,
                "rollout/ep_len_mean": 10.0 * generation + seed,
                "eval/mean_reward": 10.0 * generation + seed,
                "eval/best_mean_reward": 10.0 * generation + seed + 30.0,
                "time/fps": 60_000.0,
                "evolution/step_size": 0.1 * 0.99**generation,
                "evolution/num_invalid": 0.0,
                "evolution/center_0": float(generation),
                "evolution/center_1": float(generation**2 + seed),
            }
            for quantity in quantities:
                for place, kind in enumerate(("min", "q25", "median", "q75", "max")):
                    row[f"evolution/{quantity}_{kind}"] = 10.0 * generation + seed + 10.0 * place
                row[f"evolution/{quantity}_std"] = 12.0 + generation % 3
            rows.append(row)
    return rows


def front(num_points: int = 60, seed: int = 0) -> dict[str, Any]:
    """Make individuals of which those on a quarter of a circle are the front."""
    noise = np.random.default_rng(seed)
    is_front = np.arange(num_points) < num_points // 3
    angles = noise.uniform(0.0, np.pi / 2, num_points)
    radius = np.where(is_front, 1.0 + 0.05 * seed, noise.uniform(0.2, 0.9, num_points))
    points = np.stack([500.0 * radius * np.cos(angles), 2.4 * radius * np.sin(angles)], axis=1)
    return {
        "kind": "front",
        "axes": ["sum:reward", "last:obs[0]"],
        "points": points.tolist(),
        "is_front": is_front.tolist(),
    }


def grid_archive(cells: tuple[int, ...] = (32, 32)) -> dict[str, Any]:
    """Make a grid whose fitness rises along the first descriptor and falls along the second; the corners are empty."""
    places = np.stack(np.meshgrid(*(np.linspace(-1.0, 1.0, number) for number in cells), indexing="ij"), axis=-1)
    return _archive(places.reshape(-1, len(cells)), cells=list(cells), centroids=None)


def cvt_archive(num_cells: int = 400, num_axes: int = 2) -> dict[str, Any]:
    """Make scattered cells with the fitness of `grid_archive`."""
    places = np.random.default_rng(0).uniform(-1.0, 1.0, (num_cells, num_axes))
    return _archive(places, cells=None, centroids=(places * 2.4).tolist())


def _archive(places: np.ndarray, **cells: Any) -> dict[str, Any]:
    num_axes = places.shape[1]
    fitness = 200.0 + 100.0 * places[:, 0] - (50.0 * places[:, 1] if num_axes > 1 else 0.0)
    is_filled = np.hypot(places[:, 0], places[:, -1]) < 1.05
    return {
        "kind": "archive",
        "axes": [f"last:obs[{index}]" for index in range(num_axes)],
        "low": [-2.4] * num_axes,
        "high": [2.4] * num_axes,
        **cells,
        "fitness": [value if filled else None for value, filled in zip(fitness.tolist(), is_filled, strict=True)],
        "coverage": float(is_filled.mean()),
        "qd_score": float(fitness[is_filled].sum()),
    }
