"""Settings: every source, their order, and one clear line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from vouchmq.server.errors import SettingsError
from vouchmq.server.settings.settings import (
    Settings,
    default_of,
    doc_of,
    environment_name,
    flag_name,
    load,
    scalar_fields,
    show,
    type_of,
)
from vouchmq.server.settings.sizes import parse_amount


def write(directory: Path, text: str) -> dict[str, str]:
    """The flag that names a file with this text."""
    path = directory / "vouchmq.toml"
    path.write_text(text, encoding="utf-8")
    return {"config": str(path)}


def test_defaults_are_those_of_the_specification() -> None:
    settings = load({}, {})
    assert settings == Settings()
    assert (settings.channel_max, settings.frame_max, settings.heartbeat_s) == (2047, 131072, 60)
    assert (settings.initial_frame_max, settings.handshake_timeout_s) == (8192, 10)
    assert settings.max_message_size_bytes == 128 * 1024 * 1024
    assert settings.host == ("127.0.0.1", "::1")
    assert (settings.port, settings.default_vhost) == (5672, "/")


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    flags = write(tmp_path, 'port = 1\nheartbeat_s = 1\nchannel_max = 1\nhost = "::1"\n')
    environment = {"VOUCHMQ_PORT": "2", "VOUCHMQ_HEARTBEAT_S": "2"}
    settings = load(flags | {"port": "3"}, environment)
    assert settings.port == 3
    assert settings.heartbeat_s == 2
    assert settings.channel_max == 1
    assert settings.host == ("::1",)


def test_variables_of_rabbitmqs_image_count_between_file_and_our_own(tmp_path: Path) -> None:
    flags = write(tmp_path, 'default_user = "file"\ndefault_pass = "file"\n')
    environment = {
        "RABBITMQ_DEFAULT_USER": "theirs",
        "RABBITMQ_DEFAULT_PASS": "theirs",
        "RABBITMQ_DEFAULT_VHOST": "shop",
        "VOUCHMQ_DEFAULT_PASS": "ours",
    }
    settings = load(flags, environment)
    assert settings.default_user == "theirs"
    assert settings.default_pass == "ours"
    assert settings.all_users()[0].vhosts == ("shop",)
    assert [vhost.name for vhost in settings.all_vhosts()] == ["shop"]


def test_other_variables_of_rabbitmq_are_none_of_our_business() -> None:
    assert load({}, {"RABBITMQ_NODENAME": "rabbit", "HOME": "/"}) == Settings()


def test_the_file_may_be_named_in_the_environment_and_the_flag_wins(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text("port = 7\n")
    assert load({}, {"VOUCHMQ_CONFIG": str(named)}).port == 7
    assert load(write(tmp_path, "port = 8\n"), {"VOUCHMQ_CONFIG": str(named)}).port == 8


def test_the_file_wins_over_the_defaults_of_a_package(tmp_path: Path) -> None:
    packaged = tmp_path / "packaged.toml"
    packaged.write_text('loopback_users = []\nhost = "0.0.0.0"\nport = 7\n')
    environment = {"VOUCHMQ_DEFAULTS": str(packaged)}
    assert load({}, environment).host == ("0.0.0.0",)
    settings = load(write(tmp_path, 'loopback_users = ["guest"]\nport = 8\n'), environment)
    assert (settings.loopback_users, settings.port) == (("guest",), 8)
    assert settings.host == ("0.0.0.0",)
    assert load({}, environment | {"VOUCHMQ_PORT": "9"}).port == 9


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VOUCHMQ_PORT", "tcp://10.96.0.12:5672"),
        ("VOUCHMQ_SERVICE_HOST", "10.96.0.12"),
        ("VOUCHMQ_SERVICE_PORT", "5672"),
        ("VOUCHMQ_SERVICE_PORT_AMQP", "5672"),
        ("VOUCHMQ_PORT_5672_TCP", "tcp://10.96.0.12:5672"),
        ("VOUCHMQ_PORT_5672_TCP_PROTO", "tcp"),
        ("VOUCHMQ_PORT_5672_TCP_PORT", "5672"),
        ("VOUCHMQ_PORT_5672_TCP_ADDR", "10.96.0.12"),
        ("VOUCHMQ_HEADLESS_SERVICE_HOST", "10.96.0.13"),
        ("VOUCHMQ_HEADLESS_PORT", "tcp://10.96.0.13:5672"),
        ("VOUCHMQ_HEADLESS_PORT_5672_TCP_ADDR", "10.96.0.13"),
        ("VOUCHMQ_NAME", "/shop/vouchmq"),
        ("VOUCHMQ_ENV_PYTHON_VERSION", "3.13"),
    ],
)
def test_what_kubernetes_and_docker_tell_of_a_service_is_no_setting(name: str, value: str) -> None:
    assert load({}, {name: value}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [("VOUCHMQ_PORT", "tcp"), ("VOUCHMQ_PROT", "5672"), ("VOUCHMQ_NAME", "vouchmq")],
)
def test_a_mistake_beside_it_is_still_one(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"environment variable {name}|{name}: "):
        load({}, {name: value})


def test_tables_of_the_file_stand_for_the_first_words_of_a_name(tmp_path: Path) -> None:
    text = '[compat]\nproduct = "RabbitMQ"\nreject.immediate = true\n[durability]\nfsync = false\n'
    settings = load(write(tmp_path, text), {})
    assert settings.compat_product == "RabbitMQ"
    assert settings.compat_reject_immediate
    assert not settings.durability_fsync


@pytest.mark.parametrize("word", ["on", "TRUE", "yes", "1"])
def test_words_for_on(word: str) -> None:
    assert load({"relaxed_redeclare": word}, {}).relaxed_redeclare


@pytest.mark.parametrize("word", ["off", "False", "no", "0"])
def test_words_for_off(word: str) -> None:
    assert not load({"durability_fsync": word}, {}).durability_fsync


@pytest.mark.parametrize(
    ("text", "names"), [("a, b", ("a", "b")), ("none", ()), ("", ()), ("guest", ("guest",))]
)
def test_names_are_separated_by_commas_and_none_is_nobody(
    text: str, names: tuple[str, ...]
) -> None:
    assert load({}, {"VOUCHMQ_LOOPBACK_USERS": text}).loopback_users == names


def test_names_are_a_list_in_the_file(tmp_path: Path) -> None:
    assert load(write(tmp_path, 'loopback_users = ["none"]'), {}).loopback_users == ()
    assert load(write(tmp_path, 'loopback_users = ["a"]'), {}).loopback_users == ("a",)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("port", "70000", "expected an integer from 0 to 65535, not '70000'"),
        ("port", "http", "expected an integer from 0 to 65535, not 'http'"),
        ("port", "1.5", "expected an integer from 0 to 65535, not '1.5'"),
        ("handshake_timeout_s", "nan", "expected a number from 0.1 to 3600, not 'nan'"),
        ("handshake_timeout_s", "soon", "expected a number from 0.1 to 3600, not 'soon'"),
        ("connection_max", "-2", "expected an integer of at least -1, not '-2'"),
        ("log_level", "loud", "expected one of debug, info, warning, error, not 'loud'"),
        ("durability_fsync", "maybe", "expected on or off, not 'maybe'"),
        ("data_dir", "", "expected a path, not ''"),
        ("frame_max", "100", "expected 0 or at least 4096, not '100'"),
        ("host", " ,", "expected an address; 0.0.0.0 or :: means all interfaces"),
        ("host", "", "expected an address; 0.0.0.0 or :: means all interfaces"),
        ("ledger_broker", "é", "expected at most 100 of the characters A-Z a-z 0-9 _ . @ -, "),
        ("ledger_broker", 'a"b', "expected at most 100 of "),
        ("ledger_broker", "a\nb", "expected at most 100 of "),
        ("ledger_broker", "../a", "expected at most 100 of "),
        ("ledger_broker", "a" * 101, "expected at most 100 of "),
        ("default_vhost", "", "must not be empty"),
        ("node", "", "must not be empty"),
        ("node", "a\x1b[31mb", "must not have control characters: 'a\\x1b[31mb'"),
        ("node", "a\nb", "must not have control characters: 'a\\nb'"),
        ("node", "a\x85b", "must not have control characters: 'a\\x85b'"),
        ("default_user", "é" * 128, "expected at most 255 bytes, not 256"),
        ("ha_stream", "a.b", "expected up to 100 letters, digits, _ and -, not 'a.b'"),
        ("tls_verify", "always", "expected one of verify_none, verify_peer, not 'always'"),
        ("auth_mechanisms", "none", "expected some of PLAIN, AMQPLAIN, EXTERNAL, not 'none'"),
        (
            "auth_mechanisms",
            "PLAIN,SCRAM",
            "expected some of PLAIN, AMQPLAIN, EXTERNAL, not 'PLAIN,SCRAM'",
        ),
    ],
)
def test_a_bad_value_is_one_clear_line_with_its_source(name: str, text: str, line: str) -> None:
    variable = environment_name(name)
    for flags, environment, source in (
        ({name: text}, {}, flag_name(name)),
        ({}, {variable: text}, variable),
    ):
        with pytest.raises(SettingsError) as caught:
            load(flags, environment)
        assert str(caught.value).startswith(f"{source}: {line}")
        assert len(caught.value.args) == 1
        assert "\n" not in str(caught.value)


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"^tls_port and port: both are 5672, but they must"):
        load({"tls_port": "5672"}, {})


def test_all_faults_of_all_sources_are_told_at_once(tmp_path: Path) -> None:
    text = 'port = "x"\nprot = 1\n[[users]]\nname = 5\ntags = "t"\n[[vhosts]]\nqueues = 1\n'
    flags = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load(flags | {"frame_max": "1"}, {"VOUCHMQ_PROT": "1", "RABBITMQ_DEFAULT_USER": ""})
    file = f"configuration file {flags['config']}"
    assert caught.value.args == (
        f"{file}: users[0].name: expected a string, not a number",
        f"{file}: users[0].tags: expected a list of strings, not a string",
        f"{file}: vhosts[0].queues: no such key",
        f"{file}: vhosts[0].name: missing",
        f"{file}: port: expected an integer from 0 to 65535, not 'x'",
        f"{file}: prot: no such setting",
        "RABBITMQ_DEFAULT_USER: must not be empty",
        "environment variable VOUCHMQ_PROT: no such setting",
        "--frame-max: expected 0 or at least 4096, not '1'",
    )


@pytest.mark.parametrize(
    "variable", ["VOUCHMQ_PROT", "VOUCHMQ_", "VOUCHMQ_USERS", "VOUCHMQ_port", "VOUCHMQ_Port"]
)
def test_an_unknown_variable_is_refused(variable: str) -> None:
    with pytest.raises(SettingsError, match=f"environment variable {variable}: no such setting"):
        load({}, {variable: "1"})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("prot = 1", "prot: no such setting"),
        ("[compat]\nprot = 1", "compat_prot: no such setting"),
        ('port = "5672"', "port: expected an integer from 0 to 65535, not '5672'"),
        ("port = true", "port: expected an integer from 0 to 65535, not true"),
        ("port = 5672.0", "port: expected an integer from 0 to 65535, not 5672.0"),
        ("durability_fsync = 1", "durability_fsync: expected true or false, not 1"),
        ("host = 1", "host: expected a list of strings, not 1"),
        ("data_dir = 1", "data_dir: expected a path, not 1"),
        ("port = 1979-05-27", "port: expected an integer from 0 to 65535, not 1979-05-27"),
        ("default_pass = 1979-05-27", "default_pass: expected a string, not a date or time"),
        ("loopback_users = [1]", "loopback_users: expected a list of strings"),
        (
            "port = [2020-01-01, 12:00:00, true, 'a', {b = 1}]",
            "port: expected an integer from 0 to 65535, not [2020-01-01, 12:00:00, true, 'a', "
            "{b = 1}]",
        ),
        ("host = 2020-01-01T00:00:00Z", "expected a list of strings, not 2020-01-01T00:00:00Z"),
        ('node = ""', "node: must not be empty"),
        ("port = 70000", "port: expected an integer from 0 to 65535, not 70000"),
        ('compat_product = "a"\n[compat]\nproduct = "b"', "compat_product: given twice"),
        ("port =", "Invalid value"),
        ("users = 1", "users: expected tables, [[users]]"),
        ("vhosts = [1]", "vhosts: expected tables, [[vhosts]]"),
        ("[[users]]\ntags = []", "users[0].name: missing"),
        ('[[users]]\nname = ""', "users[0].name: must not be empty"),
        ('[[users]]\nname = "a"\npasword = "x"', "users[0].pasword: no such key"),
        ('[[users]]\nname = "a"\ntags = "b"', "users[0].tags: expected a list of strings"),
        ('[[users]]\nname = "a"\nread = 1', "users[0].read: expected a string"),
        (
            '[[users]]\nname = "a"\nmax_channels = true',
            "users[0].max_channels: expected an integer, not true",
        ),
        ('[[users]]\nname = "a"\n[[users]]\nname = "a"', "users: 'a' is listed twice"),
        ('[[vhosts]]\nname = "a"\n[[vhosts]]\nname = "a"', "vhosts: 'a' is listed twice"),
        (
            '[[users]]\nname = "a"\npassword = "x"\npassword_hash = "y"',
            "users[0]: has both a password and a password_hash",
        ),
        ('[[users]]\nname = "a"\nvhosts = ["b"]', "users: 'a': names an unknown vhost: 'b'"),
        (
            '[[users]]\nname = "a"\ntopic_permissions = ["t"]',
            "users[0].topic_permissions: expected tables, [[topic_permissions]]",
        ),
        (
            '[[users]]\nname = "a"\n[[users.topic_permissions]]\nwrite = "x"',
            "users[0].topic_permissions[0].exchange: missing",
        ),
        (
            '[[users]]\nname = "a"\n[[users.topic_permissions]]\nexchange = "t"\nkey = "x"',
            "users[0].topic_permissions[0].key: no such key",
        ),
        (
            '[[users]]\nname = "a"\n[[users.topic_permissions]]\nexchange = 1',
            "users[0].topic_permissions[0].exchange: expected a string",
        ),
        (
            '[[users]]\nname = "a"\n' + '[[users.topic_permissions]]\nexchange = "t"\n' * 2,
            "users[0].topic_permissions: 't in /' is listed twice",
        ),
        (
            '[[users]]\nname = "a"\n[[users.topic_permissions]]\nexchange = "t"\nvhost = "b"',
            "users: 'a': topic_permissions: 'b' is not in its vhosts",
        ),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path, text), {})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(SettingsError, match=r"missing\.toml: No such file or directory"):
        load({"config": str(missing)}, {})


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vouchmq.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="configuration file"):
        load({"config": str(path)}, {})


def test_users_and_vhosts_come_from_tables(tmp_path: Path) -> None:
    text = """
        [[users]]
        name = "shop"
        password = "secret"
        tags = ["impersonator"]
        vhosts = ["/", "shop"]
        configure = "^shop\\\\."
        max_connections = 3
        [[vhosts]]
        name = "shop"
        max_queues = 10
    """
    settings = load(write(tmp_path, text), {})
    (user,) = settings.all_users()
    assert (user.name, user.password, user.tags) == ("shop", "secret", ("impersonator",))
    assert (user.vhosts, user.configure, user.write) == (("/", "shop"), r"^shop\.", ".*")
    assert (user.max_connections, user.max_channels) == (3, None)
    assert [(each.name, each.max_queues) for each in settings.all_vhosts()] == [
        ("/", None),
        ("shop", 10),
    ]


def test_topic_permissions_come_from_tables_of_their_user(tmp_path: Path) -> None:
    """PERM-10."""
    text = """
        [[users]]
        name = "shop"
        [[users.topic_permissions]]
        exchange = "amq.topic"
        write = "^{username}\\\\."
        [[users.topic_permissions]]
        exchange = "other"
        [[users]]
        name = "second"
    """
    first, second = load(write(tmp_path, text), {}).all_users()
    assert [(each.vhost, each.exchange) for each in first.topic_permissions] == [
        ("/", "amq.topic"),
        ("/", "other"),
    ]
    assert (first.topic_permissions[0].write, first.topic_permissions[0].read) == (
        r"^{username}\.",
        ".*",
    )
    assert not second.topic_permissions


def test_the_default_vhost_is_not_listed_twice(tmp_path: Path) -> None:
    settings = load(write(tmp_path, '[[vhosts]]\nname = "/"\nmax_connections = 5\n'), {})
    assert [(each.name, each.max_connections) for each in settings.all_vhosts()] == [("/", 5)]


def test_the_default_user_is_an_administrator_of_the_default_vhost() -> None:
    (user,) = Settings().all_users()
    assert (user.name, user.password, user.tags) == ("guest", "guest", ("administrator",))
    assert (user.vhosts, user.configure, user.write, user.read) == (("/",), ".*", ".*", ".*")


def test_no_secret_is_shown_when_settings_are_printed(tmp_path: Path) -> None:
    flags = write(tmp_path, '[[users]]\nname = "a"\npassword = "hush"\n')
    settings = load(flags | {"default_pass": "hush"}, {})
    assert "hush" not in repr(settings)


def test_a_wrong_value_that_may_be_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path, 'default_pass = 12345\n[[users]]\nname = "a"\npassword = 1234\n'), {})
    assert len(caught.value.args) == 2
    assert "1234" not in str(caught.value)


@pytest.mark.parametrize("text", ['"::1,10.0.0.1"', '["::1", "10.0.0.1"]', '"::1, 10.0.0.1"'])
def test_several_addresses_are_a_list_or_a_text_with_commas(tmp_path: Path, text: str) -> None:
    wanted = ("::1", "10.0.0.1")
    assert load(write(tmp_path, f"host = {text}\n"), {}).host == wanted
    assert load({}, {"VOUCHMQ_HOST": "::1,10.0.0.1"}).host == wanted
    assert load({"host": "::1,10.0.0.1"}, {}).host == wanted


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """Editors on Windows write one; faults have the place that the editor shows."""
    assert load(write(tmp_path, "\ufeffport = 5673\n"), {}).port == 5673
    with pytest.raises(SettingsError, match=r"line 2, column 6"):
        load(write(tmp_path, "\ufeffport = 5673\nhost ! 1\n"), {})


def test_a_vhost_has_a_default_queue_type(tmp_path: Path) -> None:
    """VHOST-03."""
    text = '[[vhosts]]\nname = "v"\ndefault_queue_type = "{}"\n'
    settings = load(write(tmp_path, text.format("quorum")), {})
    assert [each.default_queue_type for each in settings.all_vhosts()] == [None, "quorum"]
    with pytest.raises(SettingsError, match=r"vhosts\[0\]\.default_queue_type: expected one of "):
        load(write(tmp_path, text.format("ring")), {})


def test_names_of_flags_and_variables_are_derived() -> None:
    assert flag_name("max_message_size_bytes") == "--max-message-size-bytes"
    assert environment_name("max_message_size_bytes") == "VOUCHMQ_MAX_MESSAGE_SIZE_BYTES"


@pytest.mark.parametrize("name", [field.name for field in scalar_fields()])
def test_every_default_passes_its_own_check_and_is_explained(name: str) -> None:
    default = default_of(name)
    assert doc_of(name).endswith(".")
    if name != "compat_version":
        assert getattr(load({name: show(default)}, {}), name) == default
    assert type_of(name) is not None


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("vm_memory_high_watermark", "0", "0 is 0 bytes"),
        (
            "vm_memory_high_watermark",
            "1",
            "1 is 1 bytes, .* a share has a decimal point, such as 0.6 or 1.0",
        ),
        (
            "vm_memory_high_watermark",
            "0.0",
            "a share of memory above 0.0 and .*, not '0.0'",
        ),
        (
            "vm_memory_high_watermark",
            "5.0",
            "a share .* and at most 1.0, not '5.0'",
        ),
        ("vm_memory_high_watermark", "500KB", "500KB is 500000 bytes"),
        ("disk_free_limit", "1", "1 is 1 bytes"),
        ("disk_free_limit", "1000.1", "a share of memory of at most 1000.0, not '1000.1'"),
        ("disk_free_limit", "9" * 400 + ".0", "a share of memory of at most 1000.0"),
        ("disk_free_limit", "9" * 5000, "expected a share like 0.6 or an amount like 2GB"),
    ],
)
def test_an_amount_that_must_have_been_meant_otherwise_is_refused(
    name: str, text: str, why: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{flag_name(name)}: .*{why}"):
        load({name: text}, {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vm_memory_high_watermark", "1.0"),
        ("vm_memory_high_watermark", "1MB"),
        ("disk_free_limit", "0"),
        ("disk_free_limit", "1.5"),
    ],
)
def test_an_amount_at_the_edge_is_taken(name: str, text: str) -> None:
    assert getattr(load({name: text}, {}), name) == text


@pytest.mark.parametrize("name", ["vm_memory_high_watermark", "disk_free_limit"])
@pytest.mark.parametrize(
    ("number", "share", "octets"),
    [
        ("0.6", 0.6, 0),
        ("1.0", 1.0, 0),
        ("1e-5", 0.00001, 0),
        ("6e-1", 0.6, 0),
        ("1073741824", None, 1 << 30),
        ("0x4000_0000", None, 1 << 30),
    ],
)
def test_an_amount_may_be_a_number_of_the_file(
    tmp_path: Path, name: str, number: str, share: float | None, octets: int
) -> None:
    settings = load(write(tmp_path, f"{name} = {number}"), {})
    assert parse_amount(getattr(settings, name)) == (share, octets)


AN_AMOUNT = "expected a share like 0.6 or an amount like 2GB or 1048576, not "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("vm_memory_high_watermark = nan", f"{AN_AMOUNT}'nan'"),
        ("vm_memory_high_watermark = inf", f"{AN_AMOUNT}'inf'"),
        ("vm_memory_high_watermark = -1", f"{AN_AMOUNT}'-1'"),
        ("vm_memory_high_watermark = -0.5", f"{AN_AMOUNT}'-0.5'"),
        ("vm_memory_high_watermark = 0", "0 is 0 bytes, but the minimum is 1MB; a share "),
        ("vm_memory_high_watermark = 0.0", "expected a share of memory above 0.0 and "),
        ("vm_memory_high_watermark = 1e300", "expected a share of memory above 0.0 and "),
        ("vm_memory_high_watermark = true", f"{AN_AMOUNT}true"),
        ("vm_memory_high_watermark = [0.6]", f"{AN_AMOUNT}[0.6]"),
        ("disk_free_limit = nan", f"{AN_AMOUNT}'nan'"),
        ("disk_free_limit = -inf", f"{AN_AMOUNT}'-inf'"),
        ("disk_free_limit = -1e-5", f"{AN_AMOUNT}'-0.00001'"),
        ("disk_free_limit = 1e300", "expected a share of memory of at most 1000.0, not 1e+300"),
        ("disk_free_limit = 1", "1 is 1 bytes, but the minimum is 1MB"),
        ("disk_free_limit = 2020-01-01", f"{AN_AMOUNT}2020-01-01"),
    ],
)
def test_a_number_that_is_no_amount_is_refused_as_text_is(
    tmp_path: Path, text: str, line: str
) -> None:
    flags = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load(flags, {})
    [told] = caught.value.args
    assert told.startswith(f"configuration file {flags['config']}: {text.split()[0]}: {line}")


def test_a_disk_limit_of_0_is_none_as_a_number_too(tmp_path: Path) -> None:
    assert load(write(tmp_path, "disk_free_limit = 0"), {}).disk_free_limit == "0"


def test_an_empty_name_of_the_file_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^--config: expected a path, not ''$"):
        load({"config": ""}, {})
