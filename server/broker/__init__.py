"""Virtual hosts, exchanges, queues, bindings, policies: what AMQP is about, without sockets.

May import `protocol` and `store`, no other folder of the server. Clock, timers and journal are
arguments. Start with `vhost.py` and `enqueue.py`.
"""
