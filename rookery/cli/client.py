"""`rookery client`: the file that a simulator needs to play over HTTP."""

import argparse
import sys
from importlib import resources

from rookery.cli.exit_codes import SUCCESS

FILES = {"python": "client.py", "js": "client.js"}


def add_client(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("client", help="print the client file for simulators over HTTP")
    command.add_argument("--lang", choices=FILES, default="python", help="its language")
    command.set_defaults(run_fn=run_client)


def run_client(arguments: argparse.Namespace) -> int:
    file = resources.files("rookery.serving") / FILES[arguments.lang]
    sys.stdout.write(file.read_text(encoding="utf-8"))
    return SUCCESS
