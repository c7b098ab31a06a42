"""Peers: the same work written for other libraries, to be run beside Pellucid. Each file is a library and a program."""
