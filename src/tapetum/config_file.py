"""The file behind `--config`: flags of a command in YAML, one key per flag.

Owns names and shapes: `max-model-len: 4096`, with underscores if one likes; a flag that may be given several times
takes a list, one that takes JSON a mapping. Types and ranges are the flags' own business. A flag beats its environment
variable, which beats the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches

import click

from tapetum.core.checks import shown
from tapetum.core.errors import ConfigError


def read_config_file(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Callback of an eager option: what the file says becomes what the command's flags fall back to."""
    if path is None:
        return
    flags = {
        name.removeprefix("--"): option
        for option in ctx.command.params
        if isinstance(option, click.Option) and option is not param and option.name != "help"
        for name in option.opts
    }
    ctx.default_map = {}
    for key, value in _entries(path).items():
        name = str(key).replace("_", "-")
        if name not in flags:
            raise ConfigError(
                f"{path}: {shown(key)} is no flag of `tapetum {ctx.info_name}`; {_hint(name, flags)}"
            )
        if value is not None:
            ctx.default_map[str(flags[name].name)] = _as_given(path, name, flags[name], value)


def _entries(path: str) -> Mapping[object, object]:
    # Imported here: without a file nobody waits for it.
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            entries = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise ConfigError(f"{path} holds {shown(entries)}, must be keys and values such as `port: 8000`")
    return entries


def _as_given(path: str, name: str, option: click.Option, value: object) -> object:
    """The value as the command line would bring it: text, but for switches and lists."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {name} is {shown(value)}, must be true or false")
        return value
    if option.multiple:
        return [_text(item) for item in (value if isinstance(value, list) else [value])]
    return _text(value)


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _hint(name: str, flags: Mapping[str, object]) -> str:
    near = get_close_matches(name, flags, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(flags))}"
