"""The order of `--help`: a command tells its own flags first, those of an engine under a heading of their own."""

from __future__ import annotations

import click


class EngineOption(click.Option):
    """A flag of an engine, which `--help` shows below those of the command itself."""


class FlagsCommand(click.Command):
    """A command whose `--help` tells its own flags first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, is_engine in (("Options", False), ("Engine options", True)):
            records = [
                record
                for parameter in self.get_params(ctx)
                if isinstance(parameter, click.Option)
                and isinstance(parameter, EngineOption) == is_engine
                and (record := parameter.get_help_record(ctx))
            ]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
