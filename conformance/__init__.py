"""The conformance suite: each rule of the dialect against any broker, over a socket.

Imports nothing else of ours and has a wire codec of its own on purpose. Start with `runner.py`.
"""
