"""The broker: connections and channels in front, `broker/` behind them, `edge/` around them.

Start with `runtime/runtime.py`, which puts a broker together, or `channel/publish.py`, where a
message comes in.
"""
