"""As a program, print what eight seeds of rejax's SAC return after 20k steps of Pendulum."""

import jax

from bench.peers.rejax_off_policy import RejaxOffPolicy

if __name__ == "__main__":
    algorithm = RejaxOffPolicy("sac", total_timesteps=20_000, eval_freq=5_000).algorithm
    _, (_, returns) = jax.jit(jax.vmap(algorithm.train))(jax.random.split(jax.random.key(0), 8))
    last = returns[:, -1].mean(axis=-1)
    print(f"mean {last.mean():.1f}, by seed {last.round(1)}")
