"""Run every trial as a process on this machine.

Linux forks trials from a fork server where that is safe; macOS, and a server with threads or an open GPU,
start new interpreters. Windows would need another Poller (sockets instead of pipes), job objects instead of
process groups, and handles instead of `send_fds`; nothing above these modules knows of them.
"""
