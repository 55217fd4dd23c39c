"""Time limits that are kept for many envs at once."""

import numpy as np
import pytest

from rookery.runners.envs.vector_env import EpisodeTimer


@pytest.mark.parametrize("seed", range(5))
def test_the_timer_tells_what_counting_every_episode_tells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_envs, time_limit = 5, int(rng.integers(1, 7))
    timer, lengths = EpisodeTimer(time_limit, num_envs), np.zeros(num_envs, np.int64)
    num_late = 0
    for _ in range(300):
        stepped = sorted(rng.choice(num_envs, size=rng.integers(1, num_envs + 1), replace=False).tolist())
        lengths[stepped] += 1
        late = timer.late_after_step(stepped)
        expected = lengths[stepped] >= time_limit
        assert (np.zeros(len(stepped), bool) if late is None else late).tolist() == expected.tolist()
        num_late += int(expected.sum())
        for index in np.flatnonzero((lengths >= time_limit) | (rng.random(num_envs) < 0.1)):
            timer.reset(int(index))
            lengths[index] = 0
    assert num_late > 20
