"""The broker: connections and channels in front, `broker/` behind them, `edge/` around them.

May import `protocol/`; `runtime/`, `edge/`, `cli/` and `admin/` also `store/`. Start with
`runtime/runtime.py`, which puts a broker together, or `channel/publish.py`, where a message comes
in.
"""
