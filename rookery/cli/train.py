"""`rookery train`: train an agent; write checkpoints, a recorded episode and a report."""

import argparse
import sys
from pathlib import Path

from rookery.cli.console import lasting_output, make_console
from rookery.cli.exit_codes import SUCCESS
from rookery.cli.multi_host import add_multi_host, join_hosts
from rookery.errors import InvalidInputError

DESCRIPTION = """\
Train an agent. An override is key=value: `agent` and `env` choose a method and an environment, every other key
changes one setting.
"""

EPILOG = """\
examples:
  rookery train
  rookery train agent=a2c env=classic/acrobot seed=3
  rookery train env=classic/pendulum agent.learning_rate=1e-3 total_timesteps=2e6
  rookery train 'agent.learning_rate={start: 3e-4, end: 0}'     changes over the run
  rookery train num_seeds=16                                    16 seeds in one program
  rookery train devices=2                                       two cores of a CPU, or two GPUs
  rookery train env=brax/hopper env.kwargs.backend=positional   an argument of the library
  rookery train --multirun agent=ppo,a2c seed=1,2,3             one run after the other
  rookery train env=gymnasium/Ant-v5 num_env_runners=8          8 runners on Ray; see ray.* of --show-config
  rookery train agent=my_module:MyWorkflow                      your own algorithm
  rookery train --preset SEARCH/best.yaml seed=1                the best setting of `rookery tune`

All keys with values and explanations: rookery train --show-config [OVERRIDE ...]
Some pairs of agent and env have a preset, which changes defaults. To disable it: '~preset@_global_'
Agents and environments: rookery list
"""


def add_train(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser(
        "train",
        help="train an agent",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="key=value")
    command.add_argument(
        "--preset",
        type=Path,
        metavar="FILE",
        help="begin with the settings in a YAML file, such as best.yaml of a search",
    )
    modes = command.add_mutually_exclusive_group()
    modes.add_argument("--show-config", action="store_true", help="print the config with explanations and exit")
    modes.add_argument(
        "-m", "--multirun", action="store_true", help="one run for each combination of values, like seed=1,2,3"
    )
    modes.add_argument(
        "--or-resume", action="store_true", help="if run_dir has a run with this config, resume it; for retried jobs"
    )
    add_multi_host(command)
    command.set_defaults(run_fn=run_train, trust=True)


def run_train(arguments: argparse.Namespace) -> int:
    from rookery.configs import compose, compose_with_preset, explain, split_overrides

    overrides, ray = split_overrides(arguments.overrides)
    if arguments.multirun:
        if arguments.preset is not None:
            raise InvalidInputError("--preset is for one run: with --multirun, write its settings as overrides.")
        if arguments.coordinator is not None:
            raise InvalidInputError(
                "--multirun works on one host: on several hosts, start each run with its own command."
            )
        from rookery.cli.multirun import run_all

        with lasting_output():
            return run_all(overrides, arguments.debug, ray)
    config = compose(overrides) if arguments.preset is None else compose_with_preset(arguments.preset, overrides)
    if arguments.show_config:
        sys.stdout.write(explain(config, ray))
        return SUCCESS
    from rookery.cli.training import train, train_or_resume

    begin = train_or_resume if arguments.or_resume else train
    with lasting_output():
        begin(config, make_console(), join_hosts(arguments), ray)
    return SUCCESS
