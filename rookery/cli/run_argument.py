"""Arguments of the commands that read a run directory."""

import argparse


def add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust", action="store_true", help="import modules and read files that the config of the run names"
    )
