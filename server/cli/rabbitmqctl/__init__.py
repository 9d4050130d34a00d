"""`vouchmq rabbitmqctl`: the part of RabbitMQ's command line that test suites and scripts call.

Words, output and exit codes are RabbitMQ's; what is done is done by the commands of the control
socket. What is not here is refused. May import the client of that socket. Start with `main.py`.
"""
