"""RLlib's SingleAgentEnvRunner on CartPole: steps per CPU second with so many envs, episode metrics included.

It returns episodes; the columns of a batch are made of them by RLlib's learner connectors, counted separately.

Run it with the interpreter of a virtual environment that has `ray[rllib]` and torch; it needs nothing of Rookery:
`python bench/peers/rllib_runner.py NUM_ENVS NUM_STEPS`.
"""

import json
import sys
import time

NUM_ROUNDS = 5


def main(num_envs: int, num_steps: int) -> None:
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    torch.set_num_threads(1)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=num_envs, num_env_runners=0, rollout_fragment_length=num_steps)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    )
    runner = SingleAgentEnvRunner(config=config)
    spaces = runner.env.single_observation_space, runner.env.single_action_space
    make_batch = config.build_learner_connector(*spaces)
    runner.sample(num_timesteps=num_envs * 10, explore=True)
    best = {"RLlib": 0.0, "RLlib with batches": 0.0}
    for _ in range(NUM_ROUNDS):
        start = time.process_time()
        episodes = runner.sample(num_timesteps=num_envs * num_steps, explore=True)
        runner.get_metrics()
        after_sample = time.process_time()
        make_batch(rl_module=runner.module, batch={}, episodes=episodes, shared_data={})
        after_batch = time.process_time()
        amount = sum(map(len, episodes))
        for name, end in zip(best, (after_sample, after_batch), strict=True):
            best[name] = max(best[name], amount / (end - start))
    runner.stop()
    print(json.dumps(best))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
