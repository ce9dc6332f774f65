"""`tapetum bench`: the group of what measures. A command's module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

_COMMANDS = {
    "peers": "tapetum.commands.bench_peers",
    "serve": "tapetum.commands.bench_load",
    "latency": "tapetum.commands.bench_load",
    "throughput": "tapetum.commands.bench_load",
    "kernels": "tapetum.commands.bench_kernels",
    "simulate": "tapetum.commands.bench_simulate",
}


class _BenchCommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command), f"{cmd_name} is a command"
        return command


@click.group(cls=_BenchCommands)
def bench() -> None:
    """Measure Tapetum, beside other servers or alone."""
