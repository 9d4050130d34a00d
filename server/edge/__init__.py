"""The broker as a process: sockets, TLS, signals, threads, the terminal, the files of a start.

May touch the operating system and import the whole server; decides nothing of AMQP. Start with
`app.py`, which puts a process together and ends it; `listener.py` has the sockets of clients.
"""
