"""The wire protocols of OpenAI and Anthropic, read and changed as bytes.

`protocol.py` says what a protocol is; `chat.py`, `responses.py` and `messages.py` are the three.
`requests.py` finds the messages in the bytes of a request, `layouts.py` applies a session's layout
to them, `replies.py` reads a reply while it passes, and `session.py` joins these with a session.
Nothing here opens a connection: the gateway and `wrap` do.
"""
