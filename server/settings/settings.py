"""What an operator can choose: one frozen value, each setting written down once.

A setting is a field of `Settings` with its type, default, range and meaning. The names that
operators see are derived: `max_message_size_bytes` is `VOUCHMQ_MAX_MESSAGE_SIZE_BYTES` in the
environment, `--max-message-size-bytes` as a flag and `max_message_size_bytes` in the file, where a
table may stand for the first words of a name (`[compat] product` is `compat_product`).
Users and virtual hosts are tables of the file (`server/settings/accounts.py`).

Defaults < defaults file < file < environment < flags. The defaults file is for packages and images,
whose own choices must not beat an operator's file. The variables RABBITMQ_DEFAULT_USER, _PASS and
_VHOST, which people set for RabbitMQ's image, count between file and VOUCHMQ_*.

Other modules get values, never this object. Must not know what a value is used for.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    get_origin,
    get_type_hints,
)

from msgspec import Meta

from vouchmq.server.errors import SettingsError
from vouchmq.server.settings.accounts import (
    HashingAlgorithm,
    UserAccount,
    VHostAccount,
    default_account,
    read_users,
    read_vhosts,
    require_known_vhosts,
)
from vouchmq.server.settings.kinds import (
    AMOUNTS,
    Count,
    DiskLimit,
    FrameMax,
    Hosts,
    LedgerBroker,
    Mechanisms,
    NodeName,
    StreamName,
    Uint16,
    Watermark,
)
from vouchmq.server.settings.sizes import EXPECTED, amount_text
from vouchmq.server.settings.validation import (
    Faults,
    InvalidValueError,
    Name,
    but_is,
    converted,
    kind_of,
    option,
    plain_type,
    shown_in_file,
)

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
# Names a file that the one above overrides.
DEFAULTS_VARIABLE: Final = "VOUCHMQ_DEFAULTS"
# Of commands that ask a broker elsewhere over HTTP.
URL_VARIABLE: Final = "VOUCHMQ_URL"
URL_VARIABLES: Final = (URL_VARIABLE, "VOUCHMQ_URL_USER", "VOUCHMQ_URL_PASSWORD")
# The others: how a build is made, and the project's own tests at another broker; they must not stop
# a broker that is started beside.
FOREIGN_VARIABLES: Final = frozenset(
    {
        *(CONFIG_VARIABLE, DEFAULTS_VARIABLE),
        *("VOUCHMQ_COMPILE", "VOUCHMQ_OPT_LEVEL", "VOUCHMQ_TEST_URL"),
        *URL_VARIABLES,
    }
)
# What Kubernetes tells containers of a service called vouchmq or vouchmq-…, Docker of a link.
INJECTED_NAME: Final = re.compile(
    r"VOUCHMQ_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
    r"|VOUCHMQ_ENV_.+"
)
INJECTED_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.+")
INJECTED_LINK: Final = re.compile(r"/[^/]+/[^/]+")

# msgspec knows true, false, 1 and 0.
SWITCH_WORDS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0"), False),
}
MIB: Final = 1024 * 1024
DATA_DIR: Final = Path("vouchmq-data")


@dataclass(slots=True, frozen=True)
class Settings:
    """Everything an operator has chosen."""

    host: Hosts = option(
        ("127.0.0.1", "::1"),
        "Addresses to listen on. `0.0.0.0` means all IPv4 addresses, `::` all IPv4 and IPv6 "
        "addresses. Without IPv6, `::1` beside another address is skipped.",
    )
    port: Uint16 = option(
        5672, "TCP port. 0 lets the operating system choose; the broker prints the port it got."
    )
    tls_port: Uint16 = option(
        0, "TCP port for AMQP over TLS, usually 5671; 0 disables TLS (TLS-01)."
    )
    management: bool = option(
        False,
        "Run the HTTP API and the Prometheus endpoint in a process beside the broker.",
    )
    management_host: Hosts = option(
        ("127.0.0.1", "::1"),
        "Addresses on which the HTTP API and the Prometheus endpoint listen; see `host`.",
    )
    management_port: Uint16 = option(
        15672, "TCP port of the HTTP API. 0 lets the operating system choose."
    )
    prometheus_port: Uint16 = option(
        15692,
        "TCP port of the Prometheus endpoint, which needs no login. 0 lets the operating system "
        "choose (METRIC-01).",
    )
    management_tls: bool = option(
        False,
        "Both ports of the management process use TLS, with `tls_cert_file` and `tls_key_file`.",
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
    tls_verify: Literal["verify_none", "verify_peer"] = option(
        "verify_none",
        "Whether the broker asks clients for a certificate. An invalid one ends the handshake "
        "(TLS-02).",
    )
    tls_fail_if_no_peer_cert: bool = option(
        False, "With verify_peer: reject clients that send no certificate (TLS-02)."
    )
    tls_login_from: Literal["distinguished_name", "common_name", "subject_alternative_name"] = (
        option(
            "distinguished_name",
            "Field of the client certificate that EXTERNAL uses as user name (TLS-20).",
        )
    )
    tls_san_type: Literal["dns", "ip", "email", "uri"] = option(
        "dns", "Type of the subject alternative names that `tls_login_from` considers."
    )
    tls_san_index: Count = option(0, "Zero-based index of the subject alternative name to use.")
    auth_mechanisms: Mechanisms = option(
        ("PLAIN", "AMQPLAIN", "EXTERNAL"),
        "SASL mechanisms. EXTERNAL is offered only to clients with a valid certificate (CONN-10).",
    )
    data_dir: Path = option(DATA_DIR, "Directory of the journal; created if missing.")
    load_definitions: str = option(
        "",
        "JSON file in RabbitMQ's format with virtual hosts, users, policies, exchanges, queues "
        "and bindings to create. Read at start and on SIGHUP (HTTP-43).",
    )
    definitions_skip_if_unchanged: bool = option(
        False,
        "Skip the file if it is the one that was applied last, so that changes made since stay "
        "(HTTP-43).",
    )
    ready_file: str = option(
        "",
        "File to which the broker writes host, ports and process id as JSON, and which exists "
        "while clients can connect.",
    )
    node: NodeName = option(
        "vouchmq@localhost", "Name of this broker, as sent to clients and written to the log."
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", "Minimum severity of events to log."
    )
    log_format: Literal["auto", "human", "json"] = option(
        "auto", "`human`, `json`, or `auto`: human on a terminal, otherwise JSON."
    )
    default_user: Name = option(
        "guest", "User that the first start makes if there are no others (AUTH-01)."
    )
    default_pass: str = option(
        "guest",
        "Password of `default_user` when it is made. With an empty one that user cannot log in.",
        is_secret=True,
    )
    default_vhost: Name = option("/", "Virtual host that always exists.")
    loopback_users: tuple[str, ...] = option(
        ("guest",),
        "Users who may log in only from the broker's own machine; `none` lifts the restriction "
        "(AUTH-08).",
    )
    password_hashing_algorithm: HashingAlgorithm = option(
        "rabbit_password_hashing_scrypt",
        "Hash of passwords that are set while the broker runs. Definitions with the default, which "
        "is memory-hard, are not for RabbitMQ (AUTH-02).",
    )
    handshake_timeout_s: Annotated[float, Meta(ge=0.1, le=3600)] = option(
        10.0, "Longest time from accept to connection.open-ok (CONN-06)."
    )
    auth_failure_delay_s: Annotated[float, Meta(ge=0, le=60)] = option(
        3.0, "Delay before the broker closes a connection whose login failed (CONN-23)."
    )
    auth_failures_max: Count = option(
        20,
        "Failed logins of one user from one address (for IPv6, from one /64 network) after "
        "which the broker rejects further logins without checking them; 0 disables the limit "
        "(AUTH-10).",
    )
    auth_failures_window_s: Annotated[float, Meta(ge=1, le=86400)] = option(
        60.0,
        "Time in which `auth_failures_max` failed logins are forgotten, one after the other "
        "(AUTH-10).",
    )
    channel_max: Uint16 = option(
        2047, "Channels per connection that the broker offers in tune; 0: no limit."
    )
    frame_max: FrameMax = option(
        131072, "Largest frame in bytes that the broker offers in tune; 0: no limit."
    )
    initial_frame_max: Annotated[int, Meta(ge=4096, le=1024 * 1024)] = option(
        8192, "Largest frame in bytes before tune-ok (CONN-34)."
    )
    heartbeat_s: Uint16 = option(60, "Heartbeat interval that the broker offers in tune; 0: none.")
    connection_max: Annotated[int, Meta(ge=-1)] = option(
        -1, "Maximum number of open connections; negative: no limit (CONN-40)."
    )
    channel_max_per_node: Count = option(
        0, "Maximum number of open channels on all connections; 0: no limit (CHAN-04)."
    )
    consumer_max_per_channel: Count = option(
        0, "Maximum number of consumers per channel; 0: no limit (CONS-07)."
    )
    max_message_size_bytes: Annotated[int, Meta(ge=1, le=512 * MIB)] = option(
        128 * MIB, "Largest message body (FRAME-38)."
    )
    tx_max_bytes: Annotated[int, Meta(ge=1, le=64 * 1024 * MIB)] = option(
        64 * MIB, "Maximum size of the uncommitted publishes of a channel (TX-15)."
    )
    connection_memory_bytes: Annotated[int, Meta(ge=MIB, le=1024 * 1024 * MIB)] = option(
        512 * MIB,
        "Memory that incomplete messages and uncommitted transactions of one connection may "
        "use. The broker closes connections that exceed it, but always accepts one message of "
        "the largest size (LIMIT-27).",
    )
    consumer_timeout_ms: Annotated[int, Meta(ge=0, le=315_360_000_000)] = option(
        0,
        "Time after which a consumer that has not acknowledged a delivery is cancelled; 0: off "
        "(CONS-70).",
    )
    delayed_max_messages: Count = option(
        0,
        "Maximum number of messages that a delaying exchange holds; it rejects more. 0: no "
        "limit (DELAY-21).",
    )
    dlx_retry_interval_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = option(
        10_000,
        "Retry interval for at-least-once dead letters that no queue has accepted yet (DLX-09).",
    )
    dlx_max_hops: Count = option(
        0,
        "Number of times that a message may be dead-lettered before it is dropped; 0: no limit "
        "(DLX-24).",
    )
    delivery_count_mode: Literal["returns", "failures"] = option(
        "returns",
        "What counts toward a delivery limit: all `returns`, or only `failures` (REDELIVER-11).",
    )
    default_consumer_prefetch: Uint16 = option(
        0,
        "Prefetch for consumers on channels that have not called basic.qos; 0: no limit (QOS-11).",
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
    deliver_high_water_bytes: Annotated[int, Meta(ge=4096, le=1024 * MIB)] = option(
        MIB, "Output buffer size of a connection at which deliveries to its consumers pause."
    )
    unsynced_limit_bytes: Annotated[int, Meta(ge=MIB, le=4096 * MIB)] = option(
        32 * MIB,
        "Amount of data waiting for the disk at which the broker stops reading from publishers "
        "(LIMIT-20).",
    )
    publisher_flow_messages: Annotated[int, Meta(ge=0, le=1_000_000)] = option(
        64,
        "Number of messages that may be ready in front of consumers that keep up before the "
        "broker reads publishers more slowly; 0: any number (LIMIT-29).",
    )
    queue_memory_bytes: Annotated[int, Meta(ge=64 * 1024, le=1024 * 1024 * MIB)] = option(
        64 * MIB,
        "Memory that the ready messages of one queue may use; further messages stay on disk "
        "(LIMIT-21).",
    )
    queues_memory_bytes: Annotated[int, Meta(ge=64 * 1024, le=1024 * 1024 * MIB)] = option(
        512 * MIB, "Memory that the ready messages of all queues together may use (LIMIT-21)."
    )
    vm_memory_high_watermark: Watermark = option(
        "0.6",
        "Memory use at which the broker blocks publishers: a share of RAM or of the control "
        "group's limit, or an amount like 2GB (LIMIT-01).",
    )
    disk_free_limit: DiskLimit = option(
        "50MB",
        "Free disk space below which the broker blocks publishers: an amount, or a share of RAM "
        "like 1.5; 0 disables the alarm (LIMIT-01).",
    )
    blocked_connection_log_after_s: Annotated[float, Meta(ge=0.1)] = option(
        30.0, "Time after which the log reports a publisher blocked by an alarm (LIMIT-16)."
    )
    ledger_enabled: bool = option(
        False,
        "Record the lifecycle of every message in the ledger, for audits; also `vouchmq ledger "
        "on`.",
    )
    ledger_dir: str = option(
        "", "Directory of the ledger, which several brokers may share; empty: `ledger` in data_dir."
    )
    ledger_broker: LedgerBroker = option(
        "",
        "Name of this broker in the ledger, the first part of its file names: letters, digits "
        "and `_.@-`; empty: derived from `node`.",
    )
    ledger_detail: Literal["runs", "messages"] = option(
        "runs", "`messages` also records the message-id of each publish, at some cost."
    )
    ledger_sync: Literal["off", "group"] = option(
        "off",
        "`group`: the ledger is synced before each sync of the journal, so that even after a "
        "power cut every message has its events; `off`: after a crash of the process every "
        "message has them, but perhaps not after a power cut.",
    )
    ledger_compress: Literal["none", "gz"] = option(
        "none", "Compression of completed ledger files."
    )
    ledger_file_bytes: Annotated[int, Meta(ge=65536, le=1024 * MIB)] = option(
        64 * MIB, "Size at which the broker starts the next ledger file."
    )
    ledger_rotate_s: Annotated[float, Meta(ge=1, le=86400)] = option(
        60.0, "Age at which the broker starts the next ledger file."
    )
    ledger_buffer_bytes: Annotated[int, Meta(ge=65536, le=1024 * MIB)] = option(
        8 * MIB,
        "Maximum size of the lines waiting for the ledger's disk. The broker drops lines beyond "
        "it, and the ledger records how many.",
    )
    ledger_inventory_s: Annotated[float, Meta(ge=0, le=604800)] = option(
        3600.0, "Interval between inventories of all queues; 0: only on request."
    )
    ledger_keep_hours: Annotated[float, Meta(ge=0, le=87600)] = option(
        168.0, "Age at which ledger files are removed; 0 removes none."
    )
    ledger_keep_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = option(
        8192 * MIB,
        "Total size of ledger files beyond which the oldest are removed; 0 removes none.",
    )
    segment_size_bytes: Annotated[int, Meta(ge=MIB, le=1024 * MIB)] = option(
        64 * MIB, "Size of one preallocated segment of the journal."
    )
    recovery_read_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = option(
        256 * MIB,
        "Amount of the newest part of the journal that each start reads and verifies; older "
        "parts are verified when they are read.",
    )
    recovery_on_corruption: Literal["quarantine", "refuse"] = option(
        "quarantine",
        "What to do about damage found at start: quarantine it, report it and serve the rest, "
        "or refuse to start (DURABLE-14). With `ha_log` it is read again from the log.",
    )
    ha_log: str = option(
        "",
        "Servers of the shared log, as `nats://host:4222` or `tls://host:4222`, separated by "
        "commas; empty: the broker runs by itself.",
        is_secret=True,
    )
    ha_stream: StreamName = option(
        "vouchmq", "Stream that is the log; all brokers of the log have the same."
    )
    ha_credentials: str = option(
        "",
        "File with credentials for the servers of the log: a user's JWT and seed, or a seed.",
    )
    ha_tls_ca_file: str = option(
        "", "Certificates of authorities that sign those of the log's servers, in PEM."
    )
    ha_tls_cert_file: str = option(
        "",
        "Certificate that the broker shows to the log's servers, in PEM, followed by the "
        "intermediate certificates.",
    )
    ha_tls_key_file: str = option(
        "", "The private key of `ha_tls_cert_file` in PEM, without a passphrase."
    )
    ha_monitors: tuple[str, ...] = option(
        (),
        "Monitoring addresses of all servers of the log, as `http://host:8222` or "
        "`https://host:8222`.",
    )
    ha_takeover_after_s: Annotated[float, Meta(ge=2, le=3600)] = option(
        5.0, "Silence of the leader after which a standby takes over."
    )
    ha_stepdown_after_s: Annotated[float, Meta(ge=5, le=86400)] = option(
        60.0,
        "Time without a commit after which a leader closes its clients and becomes a standby, if "
        "a standby that it has heard was silent for as long, or reaches the log.",
    )
    ha_rank: Annotated[int, Meta(ge=0, le=100)] = option(
        0, "Order in which standbys take over: 0 tries first, each higher rank half a second later."
    )
    ha_confirm: Literal["log", "log+standby"] = option(
        "log",
        "What must have a message, besides this broker's disk, before it is confirmed: the log, or "
        "the log and the disk of a standby.",
    )
    ha_deliver: Literal["committed", "at_once"] = option(
        "committed",
        "Whether deliveries wait until the log has their messages; `at_once` is faster, but after "
        "a take-over `redelivered` may be missing.",
    )
    ha_unsafe_log: bool = option(
        False, "Use a log whose settings lose confirmed messages; for tests only."
    )
    durability_fsync: bool = option(
        True, "Off makes confirms meaningless; for tests and benchmarks only (DURABLE-11)."
    )
    test_commands: bool = option(
        False, "Let control commands make the broker fail; for tests only (see the testing guide)."
    )
    test_clock_ahead_ms: Count = option(
        0, "With `test_commands`: how far the clock of queues is ahead of time at start."
    )
    shutdown_timeout_s: Annotated[float, Meta(ge=0, le=600)] = option(
        4.0, "Longest time that the broker waits for clients to close when it stops."
    )
    users: tuple[UserAccount, ...] = field(
        default=(), metadata={"doc": "`[[users]]` of the file, in place of `default_user`."}
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
        """The users that a first start makes: those of the file, or else the default one.

        Spec: AUTH-01
        """
        default = default_account(self.default_user, self.default_pass, self.default_vhost)
        return self.users or (default,)


TABLES: Final = frozenset({"users", "vhosts"})


def scalar_fields() -> list[Field[Any]]:
    """The settings that have a flag and an environment variable, in the order of the class."""
    return [each for each in fields(Settings) if each.name not in TABLES]


def flag_name(name: str) -> str:
    """The flag of a setting: `max_message_size_bytes` is `--max-message-size-bytes`."""
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    """The variable of a setting: `frame_max` is `VOUCHMQ_FRAME_MAX`."""
    return ENVIRONMENT_PREFIX + name.upper()


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Settings, include_extras=True)


def type_of(name: str) -> Any:
    """The type of a setting, with what it allows."""
    return _types()[name]


def is_list(kind: Any) -> bool:
    """Whether a type is one of several values, which text separates by commas."""
    return get_origin(plain_type(kind)) is tuple


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
        SettingsError: unknown names and values that do not fit, all of them, or an unreadable file.
    """
    file_name = flags.get("config", environment.get(CONFIG_VARIABLE, ""))
    faults = Faults()
    if flags.get("config") == "":
        faults.add("--config", "expected a path, not ''")
    chosen: dict[str, Any] = {}
    for each in (environment.get(DEFAULTS_VARIABLE, ""), file_name):
        if each:
            chosen |= _from_file(Path(each), faults)
    for variable, name in RABBITMQ_VARIABLES.items():
        if variable in environment:
            _take(chosen, name, environment[variable], variable, faults)
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and not _is_foreign(variable, text):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name not in _scalar_names() or variable != environment_name(name):
                faults.add(f"environment variable {variable}", "no such setting")
                continue
            _take(chosen, name, text, variable, faults)
    for name, text in flags.items():
        if name != "config":
            _take(chosen, name, text, flag_name(name), faults)
    faults.refuse(SettingsError)
    settings = Settings(**chosen)
    _require_consistent(settings, faults)
    require_known_vhosts(settings.all_users(), settings.all_vhosts(), faults)
    faults.refuse(SettingsError)
    return settings


def _require_consistent(settings: Settings, faults: Faults) -> None:
    """Settings that do not fit together."""
    if settings.tls_port and settings.tls_port == settings.port:
        faults.add("tls_port and port", f"both are {settings.port}, but they must differ")
    if settings.test_clock_ahead_ms and not settings.test_commands:
        faults.add("test_clock_ahead_ms", "needs test_commands")


def _is_foreign(variable: str, text: str) -> bool:
    """Whether a variable with our prefix is no setting, and not meant to be one."""
    if variable in FOREIGN_VARIABLES or INJECTED_NAME.fullmatch(variable):
        return True
    if variable.endswith("_PORT"):
        return INJECTED_ADDRESS.fullmatch(text) is not None
    return variable.endswith("_NAME") and INJECTED_LINK.fullmatch(text) is not None


@cache
def _scalar_names() -> frozenset[str]:
    return frozenset(each.name for each in scalar_fields())


def _from_file(path: Path, faults: Faults) -> dict[str, Any]:
    where = f"configuration file {path}"
    try:
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{where}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: {error}") from error
    chosen: dict[str, Any] = {
        "users": read_users(content.pop("users", []), f"{where}: users", faults),
        "vhosts": read_vhosts(content.pop("vhosts", []), f"{where}: vhosts", faults),
    }
    for name, value in _flatten(content):
        if name not in _scalar_names():
            faults.add(f"{where}: {name}", "no such setting")
        elif name in chosen:
            faults.add(f"{where}: {name}", "given twice")
        else:
            _take(chosen, name, value, f"{where}: {name}", faults, strict=True)
    return chosen


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Names and values, the names of tables joined to those inside them by an underscore."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}_")
        else:
            yield prefix + key, value


def _take(
    chosen: dict[str, Any],
    name: str,
    value: object,
    source: str,
    faults: Faults,
    *,
    strict: bool = False,
) -> None:
    """Choose a value, or tell what is wrong with it; `strict`: text does not stand for a number."""
    try:
        chosen[name] = _value(type_of(name), value, strict=strict)
    except InvalidValueError as error:
        is_shown = Settings.__dataclass_fields__[name].repr
        faults.add(source, but_is(str(error), shown_in_file(value) if is_shown else kind_of(value)))
        # Whoever overrides it need not hear of it twice.
        chosen[name] = default_of(name)


def _value(kind: Any, value: object, *, strict: bool) -> object:
    if is_list(kind):
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        # RabbitMQ's word for an empty list.
        value = [] if value == ["none"] else value
    elif kind in AMOUNTS and not isinstance(value, str):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidValueError(EXPECTED)
        value = amount_text(value)
    elif isinstance(value, str) and not strict:
        if kind is bool:
            return _switch(value)
        if plain_type(kind) in {int, float}:
            value = value.strip()
    return converted(kind, value, strict=strict)


def _switch(word: str) -> bool:
    found = SWITCH_WORDS.get(word.strip().lower())
    if found is None:
        raise InvalidValueError("expected on or off")
    return found
