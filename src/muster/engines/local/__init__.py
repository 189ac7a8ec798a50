"""The embedded engine: every trial is a process on this machine.

Linux forks trials from a warm helper process where that is safe; macOS, and a helper with threads or an open
GPU, start fresh interpreters. Windows would need another `watch` (sockets instead of pipes), job objects
instead of process groups, and handles instead of `send_fds`; nothing above these modules knows of them.
"""
