"""How programs stand in pages, and what they say they print."""

from __future__ import annotations

import re

ADDRESS = "amqp://guest:guest@127.0.0.1:5672/%2F"


BLOCK = re.compile(r"^```(?P<language>python|javascript|shell)\n(?P<code>.*?)^```", re.M | re.S)


PROMISE = re.compile(r"(?:print\(.*\)  #|console\.log\(.*\); //|^amqp-.*  #) (?P<said>.*)$", re.M)
