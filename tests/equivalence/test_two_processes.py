"""Two processes with one device each train as one process with two devices; the first alone writes the run."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

PROGRAM = """
import sys

import jax
import numpy as np

folder, port, num_processes, process_id = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if num_processes > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes, process_id)
else:
    jax.config.update("jax_num_cpu_devices", 2)

from rookery.registry import build_workflow
from rookery.workflows.programs import gather

config = {
    "agent": {"name": "ppo", "num_envs": 4, "rollout_length": 16, "num_minibatches": 2, "normalize_obs": True},
    "env": {"name": "classic/cartpole"},
    "total_timesteps": 640,
    "evaluation": {"num_episodes": 2},
    "run_dir": f"{folder}/run_of_{num_processes}",
    "recorders": ["jsonl"],
}
workflow = build_workflow(config, enable_multi_devices=True)
assert workflow.layout.mesh.size == 2
state = workflow.learn(workflow.init(workflow.make_key()))
params = [np.asarray(leaf) for leaf in jax.tree.leaves(gather(state.agent_state.params))]
np.savez(f"{folder}/params_{num_processes}_{process_id}.npz", *params)
obs = gather(state.source_state.env_state.obs)
np.save(f"{folder}/obs_{num_processes}_{process_id}.npy", obs)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(folder: Path, num_processes: int) -> None:
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), port, str(num_processes), str(process_id)],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process_id in range(num_processes)
    ]
    try:
        errors = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, text in zip(processes, errors, strict=True):
        assert process.returncode == 0, text


def test_two_processes_train_as_one_with_two_devices(tmp_path: Path) -> None:
    train(tmp_path, num_processes=1)
    train(tmp_path, num_processes=2)
    alone = np.load(tmp_path / "params_1_0.npz")
    first, second = np.load(tmp_path / "params_2_0.npz"), np.load(tmp_path / "params_2_1.npz")
    for name in alone.files:
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], alone[name], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        np.load(tmp_path / "obs_2_1.npy"), np.load(tmp_path / "obs_1_0.npy"), rtol=1e-4, atol=1e-5
    )
    lines = (tmp_path / "run_of_2" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len((tmp_path / "run_of_1" / "metrics.jsonl").read_text().splitlines())
    assert len(list((tmp_path / "run_of_2" / "checkpoints").iterdir())) == 3
