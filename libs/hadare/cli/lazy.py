"""Groups of commands whose modules are loaded when they are called for: some bring libraries that take a second."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """``lazy``: for each command the module below ``hadare.cli`` and what it is called there, as ``module:name``."""

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:  # click suggests one of those that are loaded
            for known in self._lazy:
                self._load(known)
        elif cmd_name not in self.commands:
            self._load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def _load(self, name: str) -> None:
        module, attribute = self._lazy[name].split(":")
        self.add_command(getattr(import_module(f"hadare.cli.{module}"), attribute), name)
