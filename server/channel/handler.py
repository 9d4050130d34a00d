"""Rows of the dispatch tables: from any command to the verb that knows its method's type."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pamqp import base

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.protocol.codec import Command
    from vouchmq.protocol.fields import Table

_Method = TypeVar("_Method", bound=base.Frame)
_Scope = TypeVar("_Scope")


def handler(
    kind: type[_Method], handle: Callable[[_Scope, _Method, Table], None]
) -> tuple[type[base.Frame], Callable[[_Scope, Command], None]]:
    """One row: the method's class, and a handler that unpacks the command."""

    def run(scope: _Scope, command: Command) -> None:
        method = command.method
        if not isinstance(method, kind):
            raise TypeError(f"{method.name} given to the verb of {kind.name}")
        handle(scope, method, command.arguments)

    return kind, run
