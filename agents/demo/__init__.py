"""The demo: scripted agents that repeat the published experiment on a hub, and say how it went beside the published figures.

They are clients like any other: they know the hub by its address and by tokens, and import nothing of it, so what they see is
what an agent on another machine sees. `client` is the raw one, with which everything is measured; `official` the SDK's;
`promises` holds what needs no clock, `latencies` what does, `play` the whole. `manage.py demo` lets them in and clears up.
"""
