"""The HTTP API beside RabbitMQ's: one log of requests, played against both, compared by field.

Start reading in `replay.py`; `requests.txt` is the log and `differences.toml` lists what differs,
with reasons. `python -m tests.compatibility.http_api` plays the log against a running broker.
"""
