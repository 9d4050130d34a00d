#!/bin/sh
# A header that is a float arrives in pika as an integer, and pika cannot publish one.
#
# One would guess that {"ratio": 1.5}, which every other client of AMQP 0-9-1 writes as a double,
# is read as 1.5, as it is by aio-pika, py-amqp and Node's clients. pika 1.4.4 decodes the types d
# and f to its own integer: 1.5 is read as 1, 0.9 as 0, without an error or a warning; and it
# refuses to encode a float at all. It matters wherever a header decides something (a price, a
# threshold, a rate) and one consumer of several is written with pika.
#
# Needs python3 with venv and pip. Exit code 0: seen as described; 1: it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "pika==1.4.4" "pamqp==4.0.1"
"$folder/venv/bin/python" - <<'PYTHON'
import struct
import sys

import pamqp.decode
import pika
from pika import data
from pika.exceptions import UnsupportedAMQPFieldException

seen = []
for kind, form, number in ((b"d", ">d", 1.5), (b"d", ">d", 0.9), (b"f", ">f", -2.5)):
    octets = kind + struct.pack(form, number)
    value, _ = data.decode_value(octets, 0)
    _, other = pamqp.decode.embedded_value(octets)
    print(f"type {kind.decode()}, {number}: pika {pika.__version__} reads {int(value)}, pamqp {other}")
    seen.append(isinstance(value, int) and int(value) == int(number) and other == number)
try:
    data.encode_table([], {"ratio": 1.5})
    print("pika writes a float")
    seen.append(False)
except UnsupportedAMQPFieldException:
    print("pika cannot write 1.5: UnsupportedAMQPFieldException")
    seen.append(True)
sys.exit(0 if all(seen) else 1)
PYTHON
