"""What code in the kernel may reach: the memory surface `ms`, tools, and sub-model calls.

The only layer that sees both store and kernel. Everything here runs in the host, on behalf of code
that may be hostile: each call is checked against the grant and has limits of its own.
"""
