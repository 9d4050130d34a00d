"""Options that several commands have: those of settings, and where the broker is.

The settings of `server/settings/settings.py` are the flags; click hands their texts on, and `load`
judges them together with the file and the environment. Must not know what a command does.
"""

from __future__ import annotations

import os
import re
from functools import partial, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from vouchmq.server.settings import settings as s
from vouchmq.server.settings.validation import choices_of, plain_type

if TYPE_CHECKING:
    from collections.abc import Callable

RULE_ID: Final = re.compile(r" \([A-Z]+-\d\d\)")
CONFIG: Final = "config"
URL_HELP: Final = (
    "The HTTP API of a broker elsewhere, such as https://user@host:15672. The password may be in "
    f"the URL, in {s.URL_VARIABLES[2]} or in ~/.netrc. Default: {s.URL_VARIABLE}; without it the "
    "broker on --data-dir"
)


def settings_options(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the flags of these settings; it is called with `settings`."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @settings_options_as_needed(*names)
        @wraps(command)
        def run(load_settings: Callable[[], s.Settings], **given: Any) -> int:
            return command(settings=load_settings(), **given)

        return run

    return decorate


def settings_options_as_needed(
    *names: str,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The same; it is called with `load_settings`, which refuses what is wrong when it is called.

    A mistake in settings does not keep anybody from a command that can do without them.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def run(**given: Any) -> int:
            flags = {name: given.pop(name) for name in (CONFIG, *names)}
            return command(load_settings=partial(load, flags), **given)

        with_flags: Callable[..., int] = run
        # The last one that is added comes first.
        for name in reversed(names):
            with_flags = _setting_option(name)(with_flags)
        return click.option("--config", metavar="FILE", help="TOML file with settings.")(with_flags)

    return decorate


def broker_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that say which broker is meant; it is called with `broker`."""

    @click.option("--url", metavar="URL", help=URL_HELP)
    @click.option(
        "--ca-file", metavar="FILE", help="Of https: certificates of authorities to trust, in PEM."
    )
    @click.option("--insecure", is_flag=True, help="Of https: trust any certificate.")
    @settings_options_as_needed("data_dir")
    @wraps(command)
    def run(
        load_settings: Callable[[], s.Settings],
        url: str | None,
        ca_file: str | None,
        insecure: bool,
        **given: Any,
    ) -> int:
        is_local = given_on_command_line("data_dir")
        if url is not None and is_local:
            raise click.UsageError("expected --url or --data-dir, not both")
        if url is None and not is_local:
            url = os.environ.get(s.URL_VARIABLE) or None
        if url is not None:
            module = import_module("vouchmq.server.cli.remote")
            broker = module.remote(url, os.environ, ca_file=ca_file, is_insecure=insecure)
        elif ca_file is not None or insecure:
            raise click.UsageError("--ca-file and --insecure need --url")
        else:
            local = import_module("vouchmq.server.cli.client").LocalBroker
            broker = local(load_settings().data_dir)
        return command(broker=broker, **given)

    return run


def local_broker_options(command: Callable[..., int]) -> Callable[..., int]:
    """The same, of a command that only works on the broker's machine."""

    @settings_options("data_dir")
    @only_here
    @wraps(command)
    def run(settings: s.Settings, **given: Any) -> int:
        local = import_module("vouchmq.server.cli.client").LocalBroker
        return command(broker=local(settings.data_dir), **given)

    return run


def only_here(command: Callable[..., int]) -> Callable[..., int]:
    """Have a command say, if `--url` is given, that it only works on the broker's machine."""

    @click.option("--url", hidden=True)
    @wraps(command)
    def run(url: str | None, **given: Any) -> int:
        if url is not None:
            raise click.UsageError("it works on the machine of the broker only, without --url")
        return command(**given)

    return run


def vhost_option(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the option `--vhost`, which is `/` if it is not given."""
    return click.option(
        "--vhost", metavar="NAME", default="/", help="The virtual host. Default: /"
    )(command)


def body_bytes_option(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command that shows messages the option of how much of each body it shows."""
    return click.option(
        "--body-bytes",
        metavar="N",
        type=click.IntRange(0),
        default=1024,
        help="Show so much of each body. Default: 1024",
    )(command)


def load(flags: dict[str, Any]) -> s.Settings:
    """The settings of this run; flags that are not on the command line are None or empty.

    Raises:
        SettingsError: unknown names and values that do not fit
    """
    texts = {
        name: ",".join(value) if isinstance(value, tuple) else value
        for name, value in flags.items()
        if value is not None and value != ()
    }
    return s.load(texts, os.environ)


def given_on_command_line(*names: str) -> bool:
    """Whether the command that runs has been given one of these flags."""
    context = click.get_current_context()
    return any(context.params[name] not in {None, ()} for name in names)


def json_option(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the flag `--json`; it is called with `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def _setting_option(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option(
        s.flag_name(name),
        name,
        metavar=_metavar(name),
        help=_help(name),
        # A list may be given in one flag, or in several.
        multiple=s.is_list(s.type_of(name)),
    )


def _metavar(name: str) -> str:
    kind = plain_type(s.type_of(name))
    if kind is bool:
        return "on|off"
    if (choices := choices_of(kind)) and not s.is_list(kind):
        return "|".join(choices)
    return "N" if kind in {int, float} else "TEXT"


def _help(name: str) -> str:
    # The ids of rules are for the reference, which has the same texts.
    meaning = RULE_ID.sub("", s.doc_of(name))
    return f"{meaning} Default: {s.show(s.default_of(name)) or 'empty'}"
