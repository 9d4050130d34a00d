"""The command line: `vouchmq serve`, `ping`, `store`, `ledger`, `definitions`, and more.

`main.py` is the table of commands, `commands/` says what each takes; `running/` and `data_dir/` do
the work and are imported when a command runs. May import the server and `store/`. Start with
`main.py`.
"""
