"""The handshake, method by method: every answer, every refusal, and the order of the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from pamqp import commands
from pamqp import frame as pamqp_frame

from tests.unit.server.auth.accounts import authenticator_of
from vouchmq.protocol import codec
from vouchmq.protocol import constants as c
from vouchmq.protocol.codec import Command
from vouchmq.protocol.errors import AmqpError, ChannelError, NotAllowed
from vouchmq.protocol.errors import LoginRefused as ProtocolLoginRefused
from vouchmq.protocol.fields import (
    Field,
    Table,
    boolean,
    decode_table_at,
    encode_shortstr,
    encode_table,
    long_int,
    longstr,
)
from vouchmq.protocol.states import ConnectionState
from vouchmq.server.auth.connection_limits import ConnectionLimits
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.vhost import VHost
from vouchmq.server.connection import sasl
from vouchmq.server.connection.handshake import (
    CAPABILITIES,
    IMMEDIATE,
    Handshake,
    Offer,
    header_mistake,
    judge_header,
)
from vouchmq.server.connection.login_failures import (
    InvalidResponse,
    LoginFailure,
    LoginRefused,
    UnknownMechanism,
)
from vouchmq.server.settings.accounts import UserAccount

NOTIFIABLE: Table = {"capabilities": Field("F", {"authentication_failure_close": boolean(True)})}
OFFER = Offer(node="n@h", product="VouchMQ", version="1.2", platform="Python 3")
PLAIN_GUEST = b"\x00guest\x00guest"
ACCOUNTS = (
    UserAccount("guest", password="guest"),
    UserAccount("shop", password="s", vhosts=("shop",), max_connections=1),
)


class Counter:
    """ClassicQueue ids and LSNs for a vhost that stores nothing."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, *_: object) -> int:
        self.last += 1
        return self.last


def make_vhost(name: str) -> VHost[ClassicQueue]:
    """A vhost in which nothing is ever declared."""

    def no_queue(_: object) -> ClassicQueue:
        raise AssertionError("no queue is declared in a handshake")

    counter = Counter()
    return VHost(
        name,
        new_queue=no_queue,
        define=counter,
        drop_queue=counter,
        next_queue_id=counter,
        random_name=lambda: "x",
    )


def make(
    offer: Offer = OFFER,
    *,
    connection_limits: ConnectionLimits | None = None,
    is_loopback: bool = True,
    mechanisms: Mapping[str, Callable[[], sasl.Mechanism]] = sasl.MECHANISMS,
    vhosts: dict[str, VHost[ClassicQueue]] | None = None,
) -> Handshake:
    """A handshake whose guest may enter `/` and whose shop may enter `shop`."""
    vhosts = vhosts or {name: make_vhost(name) for name in ("/", "shop")}
    return Handshake(
        offer,
        authenticator_of(ACCOUNTS, ("guest",)),
        vhosts.get,
        connection_limits or ConnectionLimits(),
        peer="127.0.0.1:1 -> 127.0.0.1:5672",
        is_loopback=is_loopback,
        mechanisms=mechanisms,
    )


def never(result: Callable[[], bytes]) -> None:
    """Nothing takes long here."""
    raise AssertionError(result)


def take(handshake: Handshake, method: Command) -> bytes:
    """The answer to a method, which is known at once."""
    answer = handshake.handle(method, never)
    assert answer is not None
    return answer


def command(ids: c.Ids, arguments: bytes) -> Command:
    """A method as the connection hands it over."""
    return codec.decode_method(ids[0].to_bytes(2, "big") + ids[1].to_bytes(2, "big") + arguments)


def long_string(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "big") + octets


def start_ok(
    response: bytes = PLAIN_GUEST, mechanism: str = "PLAIN", properties: Table | None = None
) -> Command:
    arguments = encode_table(properties or {}) + encode_shortstr(mechanism)
    return command(
        c.CONNECTION_START_OK, arguments + long_string(response) + encode_shortstr("en_US")
    )


def secure_ok(response: bytes) -> Command:
    return command(c.CONNECTION_SECURE_OK, long_string(response))


def tune_ok(channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 60) -> Command:
    octets = channel_max.to_bytes(2, "big") + frame_max.to_bytes(4, "big")
    return command(c.CONNECTION_TUNE_OK, octets + heartbeat.to_bytes(2, "big"))


def open_vhost(name: str = "/") -> Command:
    return command(c.CONNECTION_OPEN, encode_shortstr(name) + b"\x00\x01")


def update_secret(secret: str) -> Command:
    arguments = long_string(secret.encode()) + encode_shortstr("rotated")
    return command(c.CONNECTION_UPDATE_SECRET, arguments)


def authenticated(handshake: Handshake, response: bytes = PLAIN_GUEST) -> Handshake:
    take(handshake, start_ok(response))
    return handshake


def tuned(handshake: Handshake, response: bytes = PLAIN_GUEST) -> Handshake:
    take(authenticated(handshake, response), tune_ok())
    return handshake


def refused(handshake: Handshake, taken: Command) -> AmqpError:
    with pytest.raises(AmqpError) as caught:
        take(handshake, taken)
    return caught.value


# --- the protocol header ---


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09"])
def test_both_headers_of_our_protocol_are_accepted(header: bytes) -> None:
    assert judge_header(header) is True
    assert judge_header(header + b"\x01 and what follows") is True


@pytest.mark.parametrize("size", range(8))
def test_a_header_in_pieces_is_awaited(size: int) -> None:
    assert judge_header(b"AMQP\x00\x00\x09\x01"[:size]) is None
    assert judge_header(b"GET / HTTP"[:size]) is None


@pytest.mark.parametrize(
    ("octets", "mistake"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP request on the AMQP port"),
        (b"POST / HTTP/1.1\r\n", "HTTP request on the AMQP port"),
        (b"HEAD / HTTP/1.1\r\n", "HTTP request on the AMQP port"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS handshake on the plain AMQP port"),
        (b"AMQP\x03\x01\x00\x00", "AMQP 1.0 client"),
        (b"AMQP\x00\x01\x00\x00", "AMQP 1.0 client"),
        (b"AMQP\x02\x01\x00\x00", "AMQP 1.0 client over TLS"),
        (b"AMQP\x01\x01\x08\x00", "unsupported version of AMQP"),
        (b"AMQP\x00\x00\x0a\x00", "unsupported version of AMQP"),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07", "not AMQP"),
    ],
)
def test_other_headers_are_refused_and_the_mistake_is_named(octets: bytes, mistake: str) -> None:
    assert judge_header(octets) is False
    assert header_mistake(octets) == mistake


# --- start ---


def test_start_offers_what_the_broker_can() -> None:
    frame = make().start()
    _, _, method = pamqp_frame.unmarshal(frame)
    assert isinstance(method, commands.Connection.Start)
    assert (method.version_major, method.version_minor) == (0, 9)
    assert (method.mechanisms, method.locales) == ("PLAIN AMQPLAIN", "en_US")
    # 7 octets of frame header, 4 of ids, 2 of version.
    table, _ = decode_table_at(frame, 13)
    assert table["capabilities"] == Field("F", {name: boolean(True) for name in CAPABILITIES})
    assert table["product"] == longstr("VouchMQ")
    assert table["version"] == longstr("1.2")
    assert table["platform"] == longstr("Python 3")
    assert table["cluster_name"] == longstr("n@h")
    assert table["copyright"].kind == table["information"].kind == "S"


def test_what_the_operator_switched_off_is_not_offered() -> None:
    """CONN-12."""
    offer = Offer("n@h", "p", "1", "x", lacks=frozenset({IMMEDIATE}))
    table = offer.server_properties()["capabilities"].value
    assert isinstance(table, dict)
    assert IMMEDIATE not in table
    assert "channel.flow" in table


def test_product_and_version_may_be_others() -> None:
    offer = Offer(node="n", product="RabbitMQ", version="3.13.7", platform="p")
    assert offer.server_properties()["product"] == longstr("RabbitMQ")
    assert offer.server_properties()["version"] == longstr("3.13.7")


# --- start-ok ---


def test_plain_leads_to_tune_with_the_offered_values() -> None:
    handshake = make(Offer("n", "p", "v", "p", channel_max=7, frame_max=8192, heartbeat_s=9))
    _, _, method = pamqp_frame.unmarshal(take(handshake, start_ok()))
    assert isinstance(method, commands.Connection.Tune)
    assert (method.channel_max, method.frame_max, method.heartbeat) == (7, 8192, 9)
    assert handshake.state is ConnectionState.TUNING
    assert handshake.user.name == "guest"
    assert handshake.mechanism == "PLAIN"


def test_amqplain_works_as_well_and_ignores_other_keys() -> None:
    table: Table = {
        "X": long_int(1),
        "LOGIN": longstr("guest"),
        "PASSWORD": longstr("guest"),
    }
    handshake = make()
    take(handshake, start_ok(encode_table(table)[4:], "AMQPLAIN"))
    assert handshake.user.name == "guest"
    assert handshake.mechanism == "AMQPLAIN"


def test_client_properties_are_kept() -> None:
    can: Table = {
        "connection.blocked": boolean(True),
        "consumer_cancel_notify": boolean(False),
        "publisher_confirms": longstr("true"),
    }
    properties: Table = {"capabilities": Field("F", can), "connection_name": longstr("billing")}
    handshake = make()
    take(handshake, start_ok(properties=properties))
    assert handshake.client_properties == properties
    assert handshake.capabilities == {"connection.blocked"}
    assert handshake.connection_name == "billing"


@pytest.mark.parametrize(
    "properties",
    [{}, {"capabilities": longstr("all"), "connection_name": long_int(1)}],
    ids=["missing", "mistyped"],
)
def test_properties_that_say_nothing_count_as_empty(properties: Table) -> None:
    handshake = make()
    take(handshake, start_ok(properties=properties))
    assert handshake.capabilities == frozenset()
    assert handshake.connection_name == ""


@pytest.mark.parametrize("properties", [{}, NOTIFIABLE], ids=["silent", "notified"])
@pytest.mark.parametrize(
    ("response", "is_loopback"),
    [
        (b"\x00guest\x00wrong", True),
        (b"\x00nobody\x00guest", True),
        (b"\x00guest\x00", True),
        (b"\x00\x00", True),
        (b"\x00guest\x00guest", False),
    ],
)
def test_refused_logins_all_look_the_same(
    response: bytes, is_loopback: bool, properties: Table
) -> None:
    handshake = make(is_loopback=is_loopback)
    error = refused(handshake, start_ok(response, properties=properties))
    assert isinstance(error, LoginRefused)
    # Whoever knows the tree of protocol errors only still knows what this is.
    assert isinstance(error, ProtocolLoginRefused)
    assert error.code == 403
    assert error.ids == (0, 0)
    assert error.reply_text == (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )
    assert error.notify is bool(properties)
    assert handshake.state is ConnectionState.STARTING


@pytest.mark.parametrize("properties", [{}, NOTIFIABLE], ids=["silent", "notified"])
def test_a_mechanism_that_was_not_offered(properties: Table) -> None:
    error = refused(make(), start_ok(mechanism="EXTERNAL", properties=properties))
    assert isinstance(error, UnknownMechanism)
    assert error.code == 503
    assert error.reply_text == ("COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'")
    assert error.notify is bool(properties)


@pytest.mark.parametrize("properties", [{}, NOTIFIABLE], ids=["silent", "notified"])
@pytest.mark.parametrize(
    "response",
    [b"", b"guest", b"\x00guest", b"guest\x00guest\x00guest", b"\x00a\x00b\x00c", b"x\x00a\x00b"],
)
def test_malformed_plain(response: bytes, properties: Table) -> None:
    error = refused(make(), start_ok(response, properties=properties))
    assert isinstance(error, InvalidResponse)
    assert error.code == 502
    assert error.reply_text == "SYNTAX_ERROR - PLAIN response invalid"
    assert error.notify is bool(properties)


@pytest.mark.parametrize(
    "response",
    [
        b"junk",
        PLAIN_GUEST,
        b"",
        encode_table({"LOGIN": longstr("guest")})[4:],
        encode_table({"PASSWORD": longstr("guest")})[4:],
        encode_table({"LOGIN": long_int(1), "PASSWORD": longstr("guest")})[4:],
        encode_table({"LOGIN": longstr("guest"), "PASSWORD": Field("x", b"guest")})[4:],
    ],
)
def test_malformed_amqplain(response: bytes) -> None:
    error = refused(make(), start_ok(response, "AMQPLAIN"))
    assert isinstance(error, LoginFailure)
    assert error.reply_text == "SYNTAX_ERROR - AMQPLAIN response invalid"


class Riddle:
    """A mechanism with a second step, as none of ours has."""

    def __init__(self) -> None:
        self._responses: list[bytes] = []

    def __call__(self, response: bytes) -> sasl.Credentials | sasl.Challenge:
        """First the name, then the password."""
        self._responses.append(response)
        if len(self._responses) == 1:
            return sasl.Challenge(b"and the password?")
        return sasl.Credentials(*(each.decode() for each in self._responses))


def test_a_mechanism_may_ask_back() -> None:
    handshake = make(mechanisms={"RIDDLE": Riddle})
    answer = take(handshake, start_ok(b"guest", "RIDDLE"))
    _, _, method = pamqp_frame.unmarshal(answer)
    assert isinstance(method, commands.Connection.Secure)
    assert method.challenge == "and the password?"
    assert handshake.state is ConnectionState.SECURING
    _, _, method = pamqp_frame.unmarshal(take(handshake, secure_ok(b"guest")))
    assert isinstance(method, commands.Connection.Tune)
    assert handshake.user.name == "guest"


def test_a_wrong_answer_to_a_challenge_is_a_refused_login() -> None:
    handshake = make(mechanisms={"RIDDLE": Riddle})
    take(handshake, start_ok(b"guest", "RIDDLE", NOTIFIABLE))
    error = refused(handshake, secure_ok(b"wrong"))
    assert isinstance(error, LoginRefused)
    assert error.notify


# --- EXTERNAL ---


def certified(name: str | None, *, is_loopback: bool = True) -> Handshake:
    """A handshake over TLS with a client whose certificate holds this name; None: has none."""
    offered = sasl.mechanisms_for(sasl.MECHANISMS, name)
    return make(is_loopback=is_loopback, mechanisms=offered)


def test_external_is_offered_first_and_with_a_certificate_only() -> None:
    """CONN-10, TLS-20."""
    assert b"EXTERNAL PLAIN AMQPLAIN" in certified("shop").start()
    assert b"EXTERNAL PLAIN AMQPLAIN" in certified("").start()
    assert b"EXTERNAL" not in certified(None).start()


@pytest.mark.parametrize("response", [b"", b"guest", PLAIN_GUEST])
def test_external_takes_the_user_of_the_certificate_whatever_is_sent(response: bytes) -> None:
    """CONN-18."""
    handshake = certified("shop")
    take(handshake, start_ok(response, "EXTERNAL"))
    assert handshake.user.name == "shop"
    assert handshake.mechanism == "EXTERNAL"


@pytest.mark.parametrize(
    ("name", "is_loopback"), [("nobody", True), ("", True), ("guest", False), ("Shop", True)]
)
def test_a_certificate_of_nobody_is_a_refused_login(name: str, is_loopback: bool) -> None:
    """TLS-20, CONN-22, AUTH-08."""
    error = refused(certified(name, is_loopback=is_loopback), start_ok(b"", "EXTERNAL", NOTIFIABLE))
    assert isinstance(error, LoginRefused)
    assert error.notify
    assert error.reply_text == (
        "ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL. "
        "For details see the broker logfile."
    )


def test_external_without_a_certificate_was_not_offered() -> None:
    error = refused(certified(None), start_ok(b"", "EXTERNAL", NOTIFIABLE))
    assert isinstance(error, UnknownMechanism)


def test_plain_counts_beside_a_certificate() -> None:
    assert authenticated(certified("shop")).user.name == "guest"


# --- tune-ok ---


@pytest.mark.parametrize(
    ("values", "expected"),
    [((2047, 131072, 60), (2047, 131072, 60)), ((1, 4096, 0), (1, 4096, 0)), ((9, 9999, 600),) * 2],
)
def test_lower_values_are_taken_and_any_heartbeat(
    values: tuple[int, int, int], expected: tuple[int, int, int]
) -> None:
    handshake = authenticated(make())
    assert take(handshake, tune_ok(*values)) == b""
    assert (handshake.channel_max, handshake.frame_max, handshake.heartbeat_s) == expected
    assert handshake.state is ConnectionState.OPENING


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            (2048, 131072),
            "channel_max = 2048 is higher than the maximum allowed value (2047)",
        ),
        (
            (0, 131072),
            "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
        ),
        ((1, 131073), "frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ((1, 0), "frame_max = 0 is higher than the maximum allowed value (131072)"),
        ((1, 4095), "frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_values_beyond_the_offer_are_refused(values: tuple[int, int], text: str) -> None:
    error = refused(authenticated(make()), tune_ok(*values))
    assert isinstance(error, NotAllowed)
    assert error.reply_text == f"NOT_ALLOWED - negotiated {text}"
    assert error.ids == (10, 30)


def test_no_limit_is_taken_where_none_was_offered() -> None:
    offer = Offer("n", "p", "v", "p", channel_max=0, frame_max=0)
    handshake = authenticated(make(offer))
    take(handshake, tune_ok(0, 0))
    assert (handshake.channel_max, handshake.frame_max) == (0, 0)
    lower = authenticated(make(offer))
    take(lower, tune_ok(5, 4096))
    assert (lower.channel_max, lower.frame_max) == (5, 4096)
    assert isinstance(refused(authenticated(make(offer)), tune_ok(0, 100)), NotAllowed)


# --- open ---


def test_open_enters_the_vhost() -> None:
    connection_limits = ConnectionLimits()
    handshake = tuned(make(connection_limits=connection_limits))
    _, _, method = pamqp_frame.unmarshal(take(handshake, open_vhost()))
    assert isinstance(method, commands.Connection.OpenOk)
    assert handshake.state is ConnectionState.RUNNING
    assert handshake.vhost.name == "/"
    assert connection_limits.connection_count == 1
    handshake.leave()
    handshake.leave()
    assert connection_limits.connection_count == 0


def test_leaving_before_open_takes_nobody_elses_place() -> None:
    connection_limits = ConnectionLimits()
    connection_limits.enter("/", "guest")
    tuned(make(connection_limits=connection_limits)).leave()
    assert connection_limits.connection_count == 1


@pytest.mark.parametrize("name", ["nowhere", "", " /"])
def test_a_vhost_that_is_not_there(name: str) -> None:
    error = refused(tuned(make()), open_vhost(name))
    assert error.reply_text == f"NOT_ALLOWED - vhost {name} not found"


def test_a_vhost_without_any_permission() -> None:
    error = refused(tuned(make()), open_vhost("shop"))
    assert error.reply_text == ("NOT_ALLOWED - access to vhost 'shop' refused for user 'guest'")


def test_the_limit_of_the_node() -> None:
    error = refused(tuned(make(connection_limits=ConnectionLimits(0))), open_vhost("nowhere"))
    assert error.reply_text == (
        "NOT_ALLOWED - connection refused: node connection limit (0) is reached"
    )


def test_the_limit_of_the_vhost() -> None:
    connection_limits = ConnectionLimits()
    connection_limits.enter("shop", "other")

    def limited() -> Handshake:
        shop = make_vhost("shop")
        shop.connection_limit = 1
        return make(connection_limits=connection_limits, vhosts={"shop": shop})

    # Guest may not enter shop at all: the limit is looked at first (CONN-42 before CONN-44).
    error = refused(tuned(limited()), open_vhost("shop"))
    assert error.reply_text == (
        "NOT_ALLOWED - access to vhost 'shop' refused for user 'guest': "
        "connection limit (1) is reached"
    )
    connection_limits.leave("shop", "other")
    assert take(tuned(limited(), b"\x00shop\x00s"), open_vhost("shop"))


def test_the_limit_of_the_user() -> None:
    connection_limits = ConnectionLimits(2)
    first = tuned(make(connection_limits=connection_limits), b"\x00shop\x00s")
    take(first, open_vhost("shop"))
    second = tuned(make(connection_limits=connection_limits), b"\x00shop\x00s")
    # Shop may not enter / at all: the limit is looked at first (CONN-43 before CONN-44).
    assert refused(second, open_vhost("/")).reply_text == (
        "NOT_ALLOWED - connection refused for user 'shop': user connection limit (1) is reached"
    )
    assert connection_limits.connection_count == 1
    first.leave()
    assert take(second, open_vhost("shop"))


# --- out of turn ---


@pytest.mark.parametrize(
    ("prepare", "taken", "state"),
    [
        (lambda: make(), tune_ok(), "starting"),
        (lambda: make(), open_vhost(), "starting"),
        (lambda: make(), secure_ok(b""), "starting"),
        (lambda: authenticated(make()), start_ok(), "tuning"),
        (lambda: authenticated(make()), open_vhost(), "tuning"),
        (lambda: tuned(make()), tune_ok(), "opening"),
        (lambda: tuned(make()), update_secret("x"), "opening"),
    ],
)
def test_a_method_out_of_turn(prepare: Callable[[], Handshake], taken: Command, state: str) -> None:
    error = refused(prepare(), taken)
    assert isinstance(error, ChannelError)
    assert error.reply_text == (f"CHANNEL_ERROR - unexpected method in connection state {state}")


def test_what_is_no_matter_of_the_handshake_is_a_bug_of_the_caller() -> None:
    handshake = tuned(make())
    take(handshake, open_vhost())
    with pytest.raises(ValueError, match="no matter of the handshake"):
        take(handshake, update_secret("guest"))


# --- update-secret ---


def opened(handshake: Handshake) -> Handshake:
    take(tuned(handshake), open_vhost())
    return handshake


CHECKING = Offer("n", "p", "v", "p", update_secret_verify=True)


def test_the_right_secret_is_accepted() -> None:
    handshake = opened(make(CHECKING))
    handshake.update_secret(update_secret("guest"), never)
    assert handshake.user.name == "guest"


def test_a_wrong_secret_is_refused() -> None:
    with pytest.raises(NotAllowed) as caught:
        opened(make(CHECKING)).update_secret(update_secret("wrong"), never)
    assert caught.value.reply_text == (
        "NOT_ALLOWED - New secret was refused by one of the backends"
    )


def test_any_secret_is_accepted_where_none_is_checked() -> None:
    handshake = opened(make())
    handshake.update_secret(update_secret("wrong"), never)
    assert handshake.user.name == "guest"
