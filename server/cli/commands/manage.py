"""`vouchmq manage`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from vouchmq.server.cli.options import settings_options
from vouchmq.server.cli.program import import_structlog
from vouchmq.server.cli.values import Directory

if TYPE_CHECKING:
    from pathlib import Path

    from vouchmq.server.settings.settings import Settings


@click.command()
@click.option("--broker", metavar="DIR", type=Directory(), help="The same as --data-dir.")
@settings_options(
    *("data_dir", "management_host", "management_port", "prometheus_port"),
    *("management_tls", "tls_cert_file", "tls_key_file"),
    *("log_level", "log_format"),
)
def manage(broker: Path | None, settings: Settings) -> int:
    """Serve the HTTP API and the Prometheus endpoint of the broker that uses a data directory,
    until SIGTERM or SIGINT.

    `serve --management on` does the same beside the broker.

    SIGHUP has it read the certificate again. Exit 0 if it was stopped, 1 if a port cannot be used,
    2 if a setting or the certificate cannot.
    """
    if settings.management_tls:
        import_module("vouchmq.server.edge.tls").https_context(
            settings.tls_cert_file, settings.tls_key_file
        )
    import_structlog()
    code: int = import_module("vouchmq.management.process").run_command(
        {
            "data_dir": str(broker or settings.data_dir),
            "hosts": settings.management_host,
            "management_port": settings.management_port,
            "prometheus_port": settings.prometheus_port,
            "cert_file": settings.tls_cert_file if settings.management_tls else "",
            "key_file": settings.tls_key_file if settings.management_tls else "",
            "log_level": settings.log_level,
            "log_format": settings.log_format,
        }
    )
    return code
