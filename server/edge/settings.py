"""What an operator can choose: one frozen value, each setting written down once.

A setting is a field of `Settings` with its type, default, range and meaning. The names that
operators see are derived: `max_message_size_bytes` is `VOUCHMQ_MAX_MESSAGE_SIZE_BYTES` in the
environment, `--max-message-size-bytes` as a flag and `max_message_size_bytes` in the file, where a
table may stand for the first words of a name (`[compat] product` is `compat_product`).
Users and virtual hosts are tables of the file (`server/edge/accounts.py`).

Defaults < file < environment < flags. The variables RABBITMQ_DEFAULT_USER, _PASS and _VHOST, which
people set for RabbitMQ's image, count between file and VOUCHMQ_*.

Other modules get values, never this object. Must not know what a value is used for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from vouchmq.server.edge.accounts import (
    UserAccount,
    VHostAccount,
    read_users,
    read_vhosts,
    require_known_vhosts,
)
from vouchmq.server.edge.errors import SettingsError
from vouchmq.server.edge.options import from_text, from_value, option
from vouchmq.server.edge.sizes import Amount, parse_amount
from vouchmq.server.ledger.text import file_name_part

if TYPE_CHECKING:
    from dataclasses import Field

ENVIRONMENT_PREFIX: Final = "VOUCHMQ_"
RABBITMQ_VARIABLES: Final[Mapping[str, str]] = {
    "RABBITMQ_DEFAULT_USER": "default_user",
    "RABBITMQ_DEFAULT_PASS": "default_pass",
    "RABBITMQ_DEFAULT_VHOST": "default_vhost",
}
# Names the file, not a setting of it; `--config` in flags.
CONFIG_VARIABLE: Final = "VOUCHMQ_CONFIG"
# Points the project's own tests at another broker; it must not stop a broker that they start.
FOREIGN_VARIABLES: Final = frozenset({CONFIG_VARIABLE, "VOUCHMQ_TEST_URL"})

MECHANISM_NAMES: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL")
# A file name has room for more, and for the rest of it.
LEDGER_BROKER_OCTETS: Final = 100
MIB: Final = 1024 * 1024
# Of memory or disk; less was meant to be something else.
LEAST_OCTETS: Final = 1_000_000
DATA_DIR: Final = Path("vouchmq-data")


@dataclass(slots=True, frozen=True)
class Settings:
    """Everything an operator has chosen."""

    host: tuple[str, ...] = option(
        ("127.0.0.1", "::1"),
        "Addresses to listen on. `0.0.0.0` means all IPv4 addresses, `::` all IPv4 and IPv6 "
        "addresses. Without IPv6, `::1` beside another address is skipped.",
    )
    port: int = option(
        5672,
        "TCP port. 0 lets the operating system choose; the broker prints the port it got.",
        low=0,
        high=65535,
    )
    tls_port: int = option(
        0, "TCP port for AMQP over TLS, usually 5671; 0 disables TLS (TLS-01).", low=0, high=65535
    )
    tls_cert_file: str = option(
        "", "The broker's certificate in PEM, followed by the intermediate certificates."
    )
    tls_key_file: str = option(
        "", "The private key of `tls_cert_file` in PEM, without a passphrase."
    )
    tls_ca_file: str = option(
        "", "Certificate authorities in PEM that may sign client certificates."
    )
    tls_verify: str = option(
        "verify_none",
        "Whether the broker asks clients for a certificate. An invalid one ends the handshake "
        "(TLS-02).",
        choices=("verify_none", "verify_peer"),
    )
    tls_fail_if_no_peer_cert: bool = option(
        False, "With verify_peer: reject clients that send no certificate (TLS-02)."
    )
    tls_login_from: str = option(
        "distinguished_name",
        "Field of the client certificate that EXTERNAL uses as user name (TLS-20).",
        choices=("distinguished_name", "common_name", "subject_alternative_name"),
    )
    tls_san_type: str = option(
        "dns",
        "Type of the subject alternative names that `tls_login_from` considers.",
        choices=("dns", "ip", "email", "uri"),
    )
    tls_san_index: int = option(
        0, "Zero-based index of the subject alternative name to use.", low=0
    )
    auth_mechanisms: tuple[str, ...] = option(
        MECHANISM_NAMES,
        "SASL mechanisms. EXTERNAL is offered only to clients with a valid certificate (CONN-10).",
    )
    # A Path is as immutable as a string, which the rule does not know.
    data_dir: Path = option(DATA_DIR, "Directory of the journal; created if missing.")  # noqa: RUF009
    load_definitions: str = option(
        "",
        "JSON file in RabbitMQ's format with virtual hosts, users, policies, exchanges, queues "
        "and bindings to create. Read at start and on SIGHUP (HTTP-43).",
    )
    ready_file: str = option(
        "",
        "File to which the broker writes host, ports and process id as JSON, and which exists "
        "while clients can connect.",
    )
    node: str = option(
        "vouchmq@localhost", "Name of this broker, as sent to clients and written to the log."
    )
    log_level: str = option(
        "info",
        "Minimum severity of events to log.",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = option(
        "auto",
        "`human`, `json`, or `auto`: human on a terminal, otherwise JSON.",
        choices=("auto", "human", "json"),
    )
    default_user: str = option(
        "guest", "The only user as long as the file has no `[[users]]` (AUTH-01)."
    )
    default_pass: str = option(
        "guest",
        "Password of `default_user`. With an empty one that user cannot log in.",
        is_secret=True,
    )
    default_vhost: str = option("/", "Virtual host that always exists.")
    loopback_users: tuple[str, ...] = option(
        ("guest",),
        "Users who may log in only from the broker's own machine; `none` lifts the restriction "
        "(AUTH-08).",
    )
    handshake_timeout_s: float = option(
        10.0, "Longest time from accept to connection.open-ok (CONN-06).", low=0.1, high=3600
    )
    auth_failure_delay_s: float = option(
        3.0,
        "Delay before the broker closes a connection whose login failed (CONN-23).",
        low=0,
        high=60,
    )
    auth_failures_max: int = option(
        20,
        "Failed logins of one user from one address (for IPv6, from one /64 network) after "
        "which the broker rejects further logins without checking them; 0 disables the limit "
        "(AUTH-10).",
        low=0,
    )
    auth_failures_window_s: float = option(
        60.0,
        "Time in which `auth_failures_max` failed logins are forgotten, one after the other "
        "(AUTH-10).",
        low=1,
        high=86400,
    )
    channel_max: int = option(
        2047,
        "Channels per connection that the broker offers in tune; 0: no limit.",
        low=0,
        high=65535,
    )
    frame_max: int = option(
        131072,
        "Largest frame in bytes that the broker offers in tune; 0: no limit.",
        low=0,
        high=0x7FFF_FFFF,
    )
    initial_frame_max: int = option(
        8192, "Largest frame in bytes before tune-ok (CONN-34).", low=4096, high=1024 * 1024
    )
    heartbeat_s: int = option(
        60, "Heartbeat interval that the broker offers in tune; 0: none.", low=0, high=65535
    )
    connection_max: int = option(
        -1, "Maximum number of open connections; negative: no limit (CONN-40).", low=-1
    )
    channel_max_per_node: int = option(
        0, "Maximum number of open channels on all connections; 0: no limit (CHAN-04).", low=0
    )
    consumer_max_per_channel: int = option(
        0, "Maximum number of consumers per channel; 0: no limit (CONS-07).", low=0
    )
    max_message_size_bytes: int = option(
        128 * MIB, "Largest message body (FRAME-38).", low=1, high=512 * MIB
    )
    tx_max_bytes: int = option(
        64 * MIB,
        "Maximum size of the uncommitted publishes of a channel (TX-15).",
        low=1,
        high=64 * 1024 * MIB,
    )
    connection_memory_bytes: int = option(
        512 * MIB,
        "Memory that incomplete messages and uncommitted transactions of one connection may "
        "use. The broker closes connections that exceed it, but always accepts one message of "
        "the largest size (LIMIT-27).",
        low=MIB,
        high=1024 * 1024 * MIB,
    )
    consumer_timeout_ms: int = option(
        0,
        "Time after which a consumer that has not acknowledged a delivery is cancelled; 0: off "
        "(CONS-70).",
        low=0,
        high=315_360_000_000,
    )
    delayed_max_messages: int = option(
        0,
        "Maximum number of messages that a delaying exchange holds; it rejects more. 0: no "
        "limit (DELAY-21).",
        low=0,
    )
    dlx_retry_interval_ms: int = option(
        10_000,
        "Retry interval for at-least-once dead letters that no queue has accepted yet (DLX-09).",
        low=1,
        high=86_400_000,
    )
    dlx_max_hops: int = option(
        0,
        "Number of times that a message may be dead-lettered before it is dropped; 0: no limit "
        "(DLX-24).",
        low=0,
    )
    delivery_count_mode: str = option(
        "returns",
        "What counts toward a delivery limit: all `returns`, or only `failures` (REDELIVER-11).",
        choices=("returns", "failures"),
    )
    default_consumer_prefetch: int = option(
        0,
        "Prefetch for consumers on channels that have not called basic.qos; 0: no limit (QOS-11).",
        low=0,
        high=65535,
    )
    qos_apply_to_existing_consumers: bool = option(
        False, "Apply basic.qos with global=0 to existing consumers too (QOS-05)."
    )
    relaxed_redeclare: bool = option(
        False,
        "Log a redeclaration of a queue with different arguments instead of refusing it "
        "(QUEUE-25).",
    )
    update_secret_verify: bool = option(
        False, "Verify the secret of connection.update-secret; off accepts any secret (CONN-71)."
    )
    compat_product: str = option(
        "VouchMQ",
        "`product` in the server properties, by which some clients choose features (CONN-13).",
    )
    compat_version: str = option(
        "", "`version` in the server properties; empty: the version of VouchMQ (CONN-13)."
    )
    compat_client_x_death: bool = option(
        True, "Continue the counts of an x-death header that a client published (DLX-22)."
    )
    compat_reject_immediate: bool = option(
        False, "Reject immediate=1 with 540, as RabbitMQ does, instead of honoring it."
    )
    compat_reject_prefetch_size: bool = option(
        False, "Reject a prefetch size with 540, as RabbitMQ does, instead of honoring it."
    )
    compat_reject_recover: bool = option(
        False, "Reject recover(requeue=0) with 540, as RabbitMQ does, instead of honoring it."
    )
    compat_reject_flow: bool = option(
        False,
        "Reject a client's channel.flow(active=0) with 540, as RabbitMQ does, instead of "
        "honoring it.",
    )
    deliver_high_water_bytes: int = option(
        MIB,
        "Output buffer size of a connection at which deliveries to its consumers pause.",
        low=4096,
        high=1024 * MIB,
    )
    unsynced_limit_bytes: int = option(
        32 * MIB,
        "Amount of data waiting for the disk at which the broker stops reading from publishers "
        "(LIMIT-20).",
        low=MIB,
        high=4096 * MIB,
    )
    queue_memory_bytes: int = option(
        64 * MIB,
        "Memory that the ready messages of one queue may use; further messages stay on disk "
        "(LIMIT-21).",
        low=64 * 1024,
        high=1024 * 1024 * MIB,
    )
    queues_memory_bytes: int = option(
        512 * MIB,
        "Memory that the ready messages of all queues together may use (LIMIT-21).",
        low=64 * 1024,
        high=1024 * 1024 * MIB,
    )
    vm_memory_high_watermark: str = option(
        "0.6",
        "Memory use at which the broker blocks publishers: a share of RAM or of the control "
        "group's limit, or an amount like 2GB (LIMIT-01).",
    )
    disk_free_limit: str = option(
        "50MB",
        "Free disk space below which the broker blocks publishers: an amount, or a share of RAM "
        "like 1.5; 0 disables the alarm (LIMIT-01).",
    )
    blocked_connection_log_after_s: float = option(
        30.0,
        "Time after which the log reports a publisher blocked by an alarm (LIMIT-16).",
        low=0.1,
    )
    ledger_enabled: bool = option(
        False,
        "Record the lifecycle of every message in the ledger, for audits; also `vouchmq ledger "
        "on`.",
    )
    ledger_dir: str = option(
        "", "Directory of the ledger, which several brokers may share; empty: `ledger` in data_dir."
    )
    ledger_broker: str = option(
        "",
        "Name of this broker in the ledger, the first part of its file names: letters, digits "
        "and `_.@-`; empty: derived from `node`.",
    )
    ledger_detail: str = option(
        "runs",
        "`messages` also records the message-id of each publish, at some cost.",
        choices=("runs", "messages"),
    )
    ledger_sync: str = option(
        "off",
        "`group`: the ledger is synced before each sync of the journal, so that even after a "
        "power cut every message has its events; `off`: after a crash of the process every "
        "message has them, but perhaps not after a power cut.",
        choices=("off", "group"),
    )
    ledger_compress: str = option(
        "none", "Compression of completed ledger files.", choices=("none", "gz")
    )
    ledger_file_bytes: int = option(
        64 * MIB,
        "Size at which the broker starts the next ledger file.",
        low=65536,
        high=1024 * MIB,
    )
    ledger_rotate_s: float = option(
        60.0, "Age at which the broker starts the next ledger file.", low=1, high=86400
    )
    ledger_buffer_bytes: int = option(
        8 * MIB,
        "Maximum size of the lines waiting for the ledger's disk. The broker drops lines beyond "
        "it, and the ledger records how many.",
        low=65536,
        high=1024 * MIB,
    )
    ledger_inventory_s: float = option(
        3600.0,
        "Interval between inventories of all queues; 0: only on request.",
        low=0,
        high=604800,
    )
    ledger_keep_hours: float = option(
        168.0, "Age at which ledger files are removed; 0 removes none.", low=0, high=87600
    )
    ledger_keep_bytes: int = option(
        8192 * MIB,
        "Total size of ledger files beyond which the oldest are removed; 0 removes none.",
        low=0,
        high=1 << 50,
    )
    segment_size_bytes: int = option(
        64 * MIB, "Size of one preallocated segment of the journal.", low=MIB, high=1024 * MIB
    )
    recovery_read_bytes: int = option(
        256 * MIB,
        "Amount of the newest part of the journal that each start reads and verifies; older "
        "parts are verified when they are read.",
        low=0,
        high=1 << 50,
    )
    recovery_on_corruption: str = option(
        "quarantine",
        "What to do about damage found at start: quarantine it, report it and serve the rest, "
        "or refuse to start (DURABLE-14).",
        choices=("quarantine", "refuse"),
    )
    durability_fsync: bool = option(
        True, "Off makes confirms meaningless; for tests and benchmarks only (DURABLE-11)."
    )
    shutdown_timeout_s: float = option(
        4.0,
        "Longest time that the broker waits for clients to close when it stops.",
        low=0,
        high=600,
    )
    users: tuple[UserAccount, ...] = field(
        default=(), metadata={"doc": "`[[users]]` of the file; they replace `default_user`."}
    )
    vhosts: tuple[VHostAccount, ...] = field(
        default=(), metadata={"doc": "`[[vhosts]]` of the file, beside `default_vhost`."}
    )

    def all_vhosts(self) -> tuple[VHostAccount, ...]:
        """The virtual hosts that must exist: the default one first unless the file lists it."""
        if any(vhost.name == self.default_vhost for vhost in self.vhosts):
            return self.vhosts
        return (VHostAccount(self.default_vhost), *self.vhosts)

    def all_users(self) -> tuple[UserAccount, ...]:
        """The users there are: those of the file, or else the default one.

        Spec: AUTH-01
        """
        if self.users:
            return self.users
        account = UserAccount(
            name=self.default_user,
            password=self.default_pass,
            tags=("administrator",),
            vhosts=(self.default_vhost,),
        )
        return (account,)


TABLES: Final = frozenset({"users", "vhosts"})


def scalar_fields() -> list[Field[Any]]:
    """The settings that have a flag and an environment variable, in the order of the class."""
    return [each for each in fields(Settings) if each.name not in TABLES]


def flag_name(name: str) -> str:
    """`--max-message-size-bytes` of `max_message_size_bytes`."""
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    """`VOUCHMQ_MAX_MESSAGE_SIZE_BYTES` of `max_message_size_bytes`."""
    return ENVIRONMENT_PREFIX + name.upper()


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Settings)


def type_of(name: str) -> Any:
    """The Python type of a setting."""
    return _types()[name]


def doc_of(name: str) -> str:
    """What a setting means, in a sentence."""
    text: str = Settings.__dataclass_fields__[name].metadata["doc"]
    return text


def default_of(name: str) -> object:
    """The value of a setting that nobody chose."""
    return Settings.__dataclass_fields__[name].default


def show(value: object) -> str:
    """A value as it would be typed on a command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(str(each) for each in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def load(flags: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """The settings of this run.

    Args:
        flags: name of a setting, or `config`, → what stands on the command line
        environment: all environment variables; those without our prefix are ignored

    Raises:
        SettingsError: an unknown name, a value that does not fit, or an unreadable file.
    """
    file_name = flags.get("config", environment.get(CONFIG_VARIABLE, ""))
    chosen: dict[str, Any] = _from_file(Path(file_name)) if file_name else {}
    for variable, name in RABBITMQ_VARIABLES.items():
        if variable in environment:
            chosen[name] = from_text(type_of(name), _bounds(name), environment[variable], variable)
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in FOREIGN_VARIABLES:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name not in _scalar_names() or variable != environment_name(name):
                raise SettingsError(f"environment variable {variable}: no such setting")
            chosen[name] = from_text(type_of(name), _bounds(name), text, variable)
    for name, text in flags.items():
        if name != "config":
            chosen[name] = from_text(type_of(name), _bounds(name), text, flag_name(name))
    settings = Settings(**chosen)
    _require_consistent(settings)
    return settings


@cache
def _scalar_names() -> frozenset[str]:
    return frozenset(each.name for each in scalar_fields())


def _from_file(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"configuration file {path}: {error}") from error
    where = f"configuration file {path}"
    chosen: dict[str, Any] = {}
    if "users" in content:
        chosen["users"] = read_users(content.pop("users"), f"{where}: users")
    if "vhosts" in content:
        chosen["vhosts"] = read_vhosts(content.pop("vhosts"), f"{where}: vhosts")
    for name, value in _flatten(content):
        if name not in _scalar_names():
            raise SettingsError(f"{where}: {name}: no such setting")
        if name in chosen:
            raise SettingsError(f"{where}: {name}: given twice")
        chosen[name] = from_value(type_of(name), _bounds(name), value, f"{where}: {name}")
    return chosen


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Names and values, the names of tables joined to those inside them by an underscore."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}_")
        else:
            yield prefix + key, value


def _bounds(name: str) -> Mapping[str, Any]:
    return Settings.__dataclass_fields__[name].metadata


def _require_sensible(name: str, text: str, amount: Amount) -> None:
    """Refuse amounts that mean no alarm, or always one, to who meant another."""
    is_watermark = name == "vm_memory_high_watermark"
    if is_watermark and amount.share is not None and not 0 < amount.share <= 1:
        raise SettingsError(
            f"{name}: expected a share of memory above 0.0 and at most 1.0, not {text}"
        )
    if amount.share is None and (is_watermark or amount.octets) and amount.octets < LEAST_OCTETS:
        raise SettingsError(
            f"{name}: {text} is {amount.octets} bytes, but the minimum is 1MB; a share "
            "has a decimal point, such as 0.6 or 1.0"
        )


def _require_consistent(settings: Settings) -> None:
    """What no single setting can tell."""
    if 0 < settings.frame_max < 4096:
        raise SettingsError(f"frame_max: expected 0 or at least 4096, not {settings.frame_max}")
    if not all(settings.host) or not settings.host:
        raise SettingsError("host: expected an address; 0.0.0.0 or :: means all interfaces")
    name = settings.ledger_broker
    if name and (name != file_name_part(name) or len(name) > LEDGER_BROKER_OCTETS):
        raise SettingsError(
            f"ledger_broker: expected at most {LEDGER_BROKER_OCTETS} of the characters A-Z a-z "
            f"0-9 _ . @ -, not beginning with . or -, and not {name!r}"
        )
    for name in ("default_vhost", "default_user"):
        size = len(getattr(settings, name).encode("utf-8", "surrogateescape"))
        if not 0 < size <= 255:
            raise SettingsError(f"{name}: expected 1 to 255 bytes, not {size}")
    for name in ("vm_memory_high_watermark", "disk_free_limit"):
        try:
            amount = parse_amount(getattr(settings, name))
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None
        _require_sensible(name, getattr(settings, name), amount)
    mechanisms = settings.auth_mechanisms
    if not mechanisms or not set(mechanisms) <= set(MECHANISM_NAMES):
        names = ", ".join(MECHANISM_NAMES)
        raise SettingsError(
            f"auth_mechanisms: expected one or more of {names}, not {show(mechanisms)}"
        )
    if settings.tls_port and settings.tls_port == settings.port:
        raise SettingsError(f"tls_port and port are both {settings.port}; they must differ")
    require_known_vhosts(settings.all_users(), settings.all_vhosts())
