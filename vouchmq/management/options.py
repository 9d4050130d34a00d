"""What the management process is started with."""

from __future__ import annotations

from msgspec import Struct


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one management process.

    Args:
        data_dir: of the broker; its control socket is there
        hosts: addresses to listen on
        management_port: of the HTTP API; 0 lets the operating system choose
        prometheus_port: of the Prometheus endpoint, the same
        cert_file: certificate of both ports in PEM; empty: no TLS
        key_file: its key
        log_level: as of the broker
        log_format: as of the broker
        is_watched: started by a broker: end when standard input does
    """

    data_dir: str
    hosts: tuple[str, ...] = ("127.0.0.1", "::1")
    management_port: int = 15672
    prometheus_port: int = 15692
    cert_file: str = ""
    key_file: str = ""
    log_level: str = "info"
    log_format: str = "auto"
    is_watched: bool = False
