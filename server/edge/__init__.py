"""The broker as a process: sockets, TLS, signals, threads, the terminal, the files of a start.

May import the whole server, and the operating system; decides nothing of AMQP. Start with
`app.py`, which puts a process together and ends it; `listener.py` has the sockets of clients.
"""
