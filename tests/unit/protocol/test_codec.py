"""Methods in and replies out: what pamqp does well, and every trap of it that we step around."""

from __future__ import annotations

import struct
import warnings

import pytest
from pamqp import base, commands
from pamqp import frame as pamqp_frame

from vouchmq.protocol import codec
from vouchmq.protocol.access_request import AccessRequest
from vouchmq.protocol.errors import (
    CommandInvalid,
    FrameError,
    NotAllowed,
    NotFound,
    NotImplementedByBroker,
)
from vouchmq.protocol.fields import Field, boolean, encode_table, longstr

HARD_NAMES = ["a/b", "with space", "100%", "€", "x" * 255, "\udcff\udcfe", ""]


METHODS: list[type[base.Frame]] = [*commands.INDEX_MAPPING.values(), AccessRequest]
FROM_CLIENTS = [each for each in METHODS if divmod(each.index, 0x10000) not in codec.SERVER_ONLY]


def payload_of(method: base.Frame) -> bytes:
    """The payload of the frame that pamqp makes of `method`."""
    return pamqp_frame.marshal(method, 1)[7:-1]


def short(text: bytes) -> bytes:
    """A shortstr."""
    return bytes((len(text),)) + text


def arguments_with(method_class: type[base.Frame], texts: list[bytes]) -> bytes:
    """The arguments of a method: these as its texts, all else is zero."""
    parts: list[bytes] = []
    was_bit = False
    for name, text in zip(method_class.attributes(), texts, strict=True):
        kind = method_class.amqp_type(name)
        if kind == "shortstr":
            parts.append(short(text))
        elif kind != "bit" or not was_bit:
            sizes = {"bit": 1, "octet": 1, "short": 2, "longlong": 8}
            parts.append(bytes(sizes.get(kind, 4)))
        was_bit = kind == "bit"
    return b"".join(parts)


def arguments_of(octets: bytes) -> dict[str, object]:
    """What pamqp reads from one of our frames, after the frame has been found whole."""
    consumed, _, method = pamqp_frame.unmarshal(octets)
    assert consumed == len(octets)
    assert isinstance(method, base.Frame)
    return {"name": method.name, **dict(method)}


class TestDecoding:
    def test_scalars_bits_and_the_typed_table(self) -> None:
        octets = payload_of(
            commands.Queue.Declare(queue="q", durable=True, nowait=True, arguments={"x-max": 5})
        )
        command = codec.decode_method(octets)
        assert command.ids == (50, 10)
        assert command.arguments == {"x-max": Field("b", 5)}
        assert dict(command.method) == {
            "ticket": 0, "queue": "q", "passive": False, "durable": True, "exclusive": False,
            "auto_delete": False, "nowait": True, "arguments": {},
        }  # fmt: skip
        assert isinstance(command.method, commands.Queue.Declare)

    def test_bits_after_a_scalar_share_one_octet(self) -> None:
        command = codec.decode_method(
            payload_of(commands.Basic.Nack(delivery_tag=7, multiple=False, requeue=True))
        )
        assert dict(command.method) == {"delivery_tag": 7, "multiple": False, "requeue": True}

    def test_delivery_tags_are_unsigned(self) -> None:
        """FRAME-56: pamqp reads them as signed."""
        command = codec.decode_method(b"\x00\x3c\x00\x50" + b"\xff" * 8 + b"\x00")
        assert dict(command.method)["delivery_tag"] == 2**64 - 1

    @pytest.mark.parametrize("name", HARD_NAMES)
    def test_names_that_pamqp_refuses_are_decoded(self, name: str) -> None:
        """FRAME-56, EXCH-06."""
        octets = short(name.encode("utf-8", "surrogateescape"))
        command = codec.decode_method(b"\x00\x3c\x00\x28\x00\x01" + octets + octets + b"\x03")
        assert dict(command.method) == {
            "ticket": 1, "exchange": name, "routing_key": name, "mandatory": True,
            "immediate": True,
        }  # fmt: skip

    @pytest.mark.parametrize("method_class", FROM_CLIENTS, ids=lambda each: each.name)
    def test_a_name_that_is_no_utf8_is_refused(self, method_class: type[base.Frame]) -> None:
        """FRAME-57: in each shortstr of each method but basic.publish, as RabbitMQ 4.3 does it."""
        names = method_class.attributes()
        texts = [name for name in names if method_class.amqp_type(name) == "shortstr"]
        for bad in [None, *texts]:
            values = [b"a\xff\xfe" if name == bad else b"b" for name in names]
            payload = struct.pack(">I", method_class.index) + arguments_with(method_class, values)
            if bad is None or method_class is commands.Basic.Publish:
                assert codec.decode_method(payload).ids == divmod(method_class.index, 0x10000)
                continue
            with pytest.raises(FrameError) as caught:
                codec.decode_method(payload)
            assert caught.value.reply_text == "FRAME_ERROR - Malformed UTF-8 in shortstr"
            assert caught.value.ids is None
            with pytest.raises(FrameError, match="cannot decode"):
                codec.decode_method(payload + b"\0")

    @pytest.mark.parametrize(
        "octets", [b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a" * 200 + b"\xe2\x82"]
    )
    def test_surrogates_and_cut_characters_are_no_utf8(self, octets: bytes) -> None:
        """FRAME-57."""
        with pytest.raises(FrameError, match="Malformed UTF-8"):
            codec.decode_method(b"\x00\x3c\x00\x1e" + short(octets) + b"\0")
        for fine in (b"a\0b", "\uffff".encode()):
            codec.decode_method(b"\x00\x3c\x00\x1e" + short(fine) + b"\0")

    def test_reserved_fields_may_hold_anything(self) -> None:
        """CONN-46: pamqp's constructor refuses them."""
        command = codec.decode_method(
            b"\x00\x0a\x00\x28" + short(b"v" * 200) + short(b"cap") + b"\x01"
        )
        assert dict(command.method) == {
            "virtual_host": "v" * 200, "capabilities": "cap", "insist": True,
        }  # fmt: skip

    def test_a_response_that_is_not_utf8_is_text_all_the_same(self) -> None:
        """FRAME-56: pamqp gives str or bytes as it comes."""
        response = b"\x00u\x00\xff\xfe"
        octets = (
            b"\x00\x0a\x00\x0b"
            + encode_table({"k": longstr(b"\xff")})
            + short(b"PLAIN")
            + struct.pack(">I", len(response))
            + response
            + short(b"en_US")
        )
        command = codec.decode_method(octets)
        assert command.arguments == {"k": Field("S", b"\xff")}
        assert dict(command.method)["response"] == "\x00u\x00\udcff\udcfe"

    def test_tables_that_pamqp_cannot_read_are_decoded(self) -> None:
        """FRAME-54, FRAME-56."""
        table = {"\udcff": Field("T", 2**64 - 1), "big": Field("l", -1)}
        octets = b"\x00\x32\x00\x0a\x00\x00\x01q\x00" + encode_table(table)
        assert codec.decode_method(octets).arguments == table

    @pytest.mark.parametrize(
        "method",
        [
            commands.Connection.TuneOk(7, 4096, 60),
            commands.Connection.Open("/"),
            commands.Connection.Close(200, "bye", 0, 0),
            commands.Connection.CloseOk(),
            commands.Channel.Open(),
            commands.Channel.Close(200, "bye", 0, 0),
            commands.Channel.CloseOk(),
        ],
    )
    def test_what_many_clients_say_in_the_same_octets_is_decoded_once(
        self, method: base.Frame
    ) -> None:
        octets = payload_of(method)
        first, again = codec.decode_method(octets), codec.decode_method(bytes(bytearray(octets)))
        assert again is first
        assert dict(first.method) == dict(method)
        for damaged in (octets + b"\0", octets[:-1]):
            with pytest.raises(FrameError):
                codec.decode_method(damaged)

    @pytest.mark.parametrize(
        "method",
        [
            commands.Connection.SecureOk("secret"),
            commands.Connection.UpdateSecret("secret", "why"),
            commands.Basic.Get(queue="q"),
        ],
    )
    def test_nothing_else_is_kept(self, method: base.Frame) -> None:
        octets = payload_of(method)
        assert codec.decode_method(octets) is not codec.decode_method(octets)

    def test_many_different_ones_are_decoded_all_the_same(self) -> None:
        names = [f"vhost-{number}" for number in range(1000)]
        payloads = [payload_of(commands.Connection.Open(name)) for name in names]
        for _ in range(2):
            decoded = [dict(codec.decode_method(octets).method) for octets in payloads]
            assert [method["virtual_host"] for method in decoded] == names
        long = payload_of(commands.Connection.Open("v" * 100))
        assert codec.decode_method(long) is not codec.decode_method(long)

    def test_a_deprecated_method_does_not_warn(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            command = codec.decode_method(b"\x00\x3c\x00\x64\x01")
        assert command.ids == (60, 100)

    def test_access_request_is_known(self) -> None:
        """CHAN-30."""
        command = codec.decode_method(b"\x00\x1e\x00\x0a\x05/data\x15")
        assert isinstance(command.method, AccessRequest)
        assert dict(command.method) == {
            "realm": "/data", "exclusive": True, "passive": False, "active": True,
            "write": False, "read": True,
        }  # fmt: skip

    def test_update_secret_and_secure_ok_are_known(self) -> None:
        """CONN-20, CONN-70."""
        command = codec.decode_method(payload_of(commands.Connection.UpdateSecret("s", "r")))
        assert dict(command.method) == {"new_secret": "s", "reason": "r"}
        command = codec.decode_method(payload_of(commands.Connection.SecureOk(response="s")))
        assert dict(command.method) == {"response": "s"}

    @pytest.mark.parametrize(
        "ids", [(20, 21), (20, 41), (60, 31), (20, 10), (10, 51), (10, 60), (60, 80)]
    )
    def test_what_is_legal_in_some_state_is_left_to_whoever_knows_it(
        self, ids: tuple[int, int]
    ) -> None:
        arguments = {(20, 21): b"\x00", (60, 80): bytes(9), (20, 41): b"", (10, 51): b""}
        octets = struct.pack(">HH", *ids) + arguments.get(ids, b"\x00")
        assert codec.decode_method(octets).ids == ids


class TestRefusing:
    @pytest.mark.parametrize("size", [0, 1, 3])
    def test_less_than_four_octets_are_no_method(self, size: int) -> None:
        """FRAME-14."""
        with pytest.raises(
            FrameError, match=r"type 1, all octets = <<.*>>: unknown_frame"
        ) as raised:
            codec.decode_method(bytes(size))
        assert raised.value.ids == (0, 0)

    @pytest.mark.parametrize("ids", [(60, 41), (10, 12), (99, 1), (0, 0), (30, 12), (65535, 65535)])
    def test_an_unknown_method_is_not_implemented(self, ids: tuple[int, int]) -> None:
        """FRAME-16."""
        with pytest.raises(NotImplementedByBroker) as raised:
            codec.decode_method(struct.pack(">HH", *ids))
        assert raised.value.reply_text == f"NOT_IMPLEMENTED - unknown method {ids[0]}.{ids[1]}"
        assert raised.value.ids == ids
        assert ids not in codec.KNOWN_METHODS

    @pytest.mark.parametrize("ids", sorted(codec.SERVER_ONLY))
    def test_what_only_the_broker_sends_is_refused_undecoded(self, ids: tuple[int, int]) -> None:
        """FRAME-17."""
        with pytest.raises(CommandInvalid) as raised:
            codec.decode_method(struct.pack(">HH", *ids) + b"\xff")
        assert raised.value.reply_text == "COMMAND_INVALID - unimplemented method"
        assert raised.value.ids == ids
        assert ids in codec.KNOWN_METHODS

    def test_the_replies_of_pamqp_are_the_ones_refused(self) -> None:
        """FRAME-17: no reply was forgotten, save those that clients may give too."""
        replies = {
            divmod(index, 0x10000)
            for index, method in commands.INDEX_MAPPING.items()
            if method.__qualname__.endswith(("Ok", "Empty", "Deliver", "Return"))
            and index >> 16 != 10
        }
        from_clients_too = {(20, 21), (20, 41), (60, 31)}
        assert codec.SERVER_ONLY - {(30, 11)} == replies - from_clients_too

    @pytest.mark.parametrize(
        "method",
        [
            commands.Queue.Declare(queue="name", arguments={"a": {"b": [1, "x"]}}),
            commands.Basic.Publish(exchange="e", routing_key="k"),
            commands.Basic.Ack(delivery_tag=1),
            commands.Connection.StartOk({"k": "v"}, "PLAIN", "response", "en_US"),
            commands.Channel.Close(200, "bye", 0, 0),
            commands.Basic.Qos(0, 10, False),
            commands.Tx.Select(),
        ],
    )
    def test_any_octet_too_few_or_too_many_is_a_frame_error(self, method: base.Frame) -> None:
        """FRAME-15, FRAME-56: pamqp accepts most of these."""
        octets = payload_of(method)
        codec.decode_method(octets)
        for damaged in [octets[:size] for size in range(4, len(octets))] + [octets + b"\x00"]:
            with pytest.raises(FrameError, match="cannot decode <<") as raised:
                codec.decode_method(damaged)
            assert raised.value.ids == divmod(method.index, 0x10000)

    def test_the_snippet_shows_the_arguments(self) -> None:
        """FRAME-15."""
        with pytest.raises(FrameError) as raised:
            codec.decode_method(b"\x00\x3c\x00\x50\x01\x02")
        assert raised.value.reply_text == "FRAME_ERROR - cannot decode <<1,2>>"


class TestReplies:
    @pytest.mark.parametrize(
        ("octets", "arguments"),
        [
            (codec.connection_tune(2047, 131072, 60),
             {"name": "Connection.Tune", "channel_max": 2047, "frame_max": 131072,
              "heartbeat": 60}),
            (codec.connection_secure(b"who?"), {"name": "Connection.Secure", "challenge": "who?"}),
            (codec.connection_open_ok(), {"name": "Connection.OpenOk", "known_hosts": ""}),
            (codec.connection_close_ok(), {"name": "Connection.CloseOk"}),
            (codec.connection_blocked("low on disk"),
             {"name": "Connection.Blocked", "reason": "low on disk"}),
            (codec.connection_unblocked(), {"name": "Connection.Unblocked"}),
            (codec.update_secret_ok(), {"name": "Connection.UpdateSecretOk"}),
            (codec.channel_open_ok(3), {"name": "Channel.OpenOk", "channel_id": ""}),
            (codec.channel_close_ok(3), {"name": "Channel.CloseOk"}),
            (codec.flow_ok(3, True), {"name": "Channel.FlowOk", "active": True}),
            (codec.flow_ok(3, False), {"name": "Channel.FlowOk", "active": False}),
            (codec.exchange_declare_ok(3), {"name": "Exchange.DeclareOk"}),
            (codec.exchange_delete_ok(3), {"name": "Exchange.DeleteOk"}),
            (codec.exchange_bind_ok(3), {"name": "Exchange.BindOk"}),
            (codec.exchange_unbind_ok(3), {"name": "Exchange.UnbindOk"}),
            (codec.queue_bind_ok(3), {"name": "Queue.BindOk"}),
            (codec.queue_unbind_ok(3), {"name": "Queue.UnbindOk"}),
            (codec.queue_purge_ok(3, 9), {"name": "Queue.PurgeOk", "message_count": 9}),
            (codec.queue_delete_ok(3, 9), {"name": "Queue.DeleteOk", "message_count": 9}),
            (codec.qos_ok(3), {"name": "Basic.QosOk"}),
            (codec.get_empty(3), {"name": "Basic.GetEmpty", "cluster_id": ""}),
            (codec.recover_ok(3), {"name": "Basic.RecoverOk"}),
            (codec.confirm_select_ok(3), {"name": "Confirm.SelectOk"}),
            (codec.tx_select_ok(3), {"name": "Tx.SelectOk"}),
            (codec.tx_commit_ok(3), {"name": "Tx.CommitOk"}),
            (codec.tx_rollback_ok(3), {"name": "Tx.RollbackOk"}),
            (codec.basic_ack(3, 5, True),
             {"name": "Basic.Ack", "delivery_tag": 5, "multiple": True}),
            (codec.basic_nack(3, 5, True),
             {"name": "Basic.Nack", "delivery_tag": 5, "multiple": True, "requeue": False}),
            (codec.basic_nack(3, 5, False, True),
             {"name": "Basic.Nack", "delivery_tag": 5, "multiple": False, "requeue": True}),
        ],
    )  # fmt: skip
    def test_pamqp_reads_what_was_meant(self, octets: bytes, arguments: dict[str, object]) -> None:
        assert arguments_of(octets) == arguments

    def test_channel_numbers_are_written(self) -> None:
        assert codec.qos_ok(0xABCD)[1:3] == b"\xab\xcd"
        assert codec.basic_ack(0xABCD, 1, False)[1:3] == b"\xab\xcd"

    def test_start_carries_the_server_properties_with_their_types(self) -> None:
        """CONN-10, CONN-11."""
        properties = {
            "capabilities": Field("F", {"basic.nack": boolean(True)}),
            "product": longstr("VouchMQ"),
        }
        octets = codec.connection_start(properties, "PLAIN AMQPLAIN")
        assert arguments_of(octets) == {
            "name": "Connection.Start",
            "version_major": 0,
            "version_minor": 9,
            "server_properties": {"capabilities": {"basic.nack": True}, "product": "VouchMQ"},
            "mechanisms": "PLAIN AMQPLAIN",
            "locales": "en_US",
        }

    @pytest.mark.parametrize("name", HARD_NAMES)
    def test_names_that_pamqp_refuses_are_encoded(self, name: str) -> None:
        """FRAME-56: decoded by our own walk, since pamqp cannot read all of them either."""
        octets = short(name.encode("utf-8", "surrogateescape"))
        body = {
            b"\x00\x32\x00\x0b" + octets + struct.pack(">II", 4, 2): codec.queue_declare_ok(
                1, name, 4, 2
            ),
            b"\x00\x3c\x00\x15" + octets: codec.consume_ok(1, name),
            b"\x00\x3c\x00\x1f" + octets: codec.cancel_ok(1, name),
            b"\x00\x3c\x00\x1e" + octets + b"\x01": codec.cancel(1, name),
            b"\x00\x3c\x00\x32\x01\x38\x08NO_ROUTE" + octets + octets: codec.basic_return(
                1, 312, "NO_ROUTE", name, name
            ),
            b"\x00\x3c\x00\x3c\x01c" + struct.pack(">QB", 9, 1) + octets + octets: codec.deliver(
                1, "c", 9, True, name, name
            ),
            b"\x00\x3c\x00\x47" + struct.pack(">QB", 9, 0) + octets + octets + b"\0\0\0\x07":
                codec.get_ok(1, 9, False, name, name, 7),
        }  # fmt: skip
        for payload, frame in body.items():
            assert frame == b"\x01\x00\x01" + struct.pack(">I", len(payload)) + payload + b"\xce"

    def test_access_request_ok_has_ticket_one(self) -> None:
        """CHAN-30."""
        assert (
            codec.access_request_ok(2)
            == b"\x01\x00\x02\x00\x00\x00\x06\x00\x1e\x00\x0b\x00\x01\xce"
        )

    def test_a_count_beyond_32_bits_is_told_as_the_longest_tellable(self) -> None:
        assert arguments_of(codec.queue_delete_ok(1, 2**40))["message_count"] == 2**32 - 1

    def test_heartbeat(self) -> None:
        """CONN-60."""
        assert codec.HEARTBEAT == b"\x08\x00\x00\x00\x00\x00\x00\xce"

    def test_harmless_methods_may_go_through_pamqp(self) -> None:
        assert codec.encode(5, commands.Basic.Ack(7, True)) == codec.basic_ack(5, 7, True)


class TestClosing:
    def test_a_close_carries_code_text_and_the_ids_of_the_method(self) -> None:
        """GEN-03, GEN-05."""
        error = NotFound("no queue 'q' in vhost '/'")
        assert arguments_of(codec.channel_close(2, error, (50, 10))) == {
            "name": "Channel.Close",
            "reply_code": 404,
            "reply_text": "NOT_FOUND - no queue 'q' in vhost '/'",
            "class_id": 50,
            "method_id": 10,
        }

    def test_ids_of_the_error_go_before_those_of_the_method(self) -> None:
        """GEN-05."""
        error = NotAllowed("number of channels", (0, 0))
        octets = codec.connection_close(error, (20, 10))
        assert arguments_of(octets) == {
            "name": "Connection.Close",
            "reply_code": 530,
            "reply_text": "NOT_ALLOWED - number of channels",
            "class_id": 0,
            "method_id": 0,
        }

    def test_a_long_text_is_cut_instead_of_raising(self) -> None:
        """GEN-03, FRAME-56."""
        text = arguments_of(codec.channel_close(2, NotFound("ü" * 300)))["reply_text"]
        assert isinstance(text, str)
        assert len(text.encode()) == 254


class TestWhyPamqpIsNotTrusted:
    """FRAME-56: when one of these fails, pamqp has changed and a trap may go."""

    def test_it_refuses_names_in_replies(self) -> None:
        with pytest.raises(ValueError, match="Invalid value for queue"):
            commands.Queue.DeclareOk("€", 0, 0)
        with pytest.raises(ValueError, match="Max length exceeded"):
            commands.Basic.Deliver("c", 1, False, "x" * 128, "k")

    def test_it_does_not_know_class_30(self) -> None:
        assert 0x001E000A not in commands.INDEX_MAPPING

    def test_it_takes_a_truncated_name_and_octets_left_over(self) -> None:
        method = commands.Basic.CancelOk("")
        method.unmarshal(b"\x09abc")
        assert method.consumer_tag == "abc"
        commands.Tx.Select().unmarshal(b"left over")
