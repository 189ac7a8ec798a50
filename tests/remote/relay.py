"""Carry bytes between standard input and output and a TCP port: a proxy command for tests."""

import os
import selectors
import socket
import sys

connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
ways = selectors.DefaultSelector()
ways.register(0, selectors.EVENT_READ, (0, connection.fileno()))
ways.register(connection, selectors.EVENT_READ, (connection.fileno(), 1))
while True:
    for key, _ in ways.select():
        source, target = key.data
        data = os.read(source, 65536)
        if not data:
            sys.exit()
        os.write(target, data)
