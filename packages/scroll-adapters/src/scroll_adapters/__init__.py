"""Adapters that bring Scroll into agent frameworks, one module for each framework.

Each module needs its framework, which the extra of the same name installs, such as
`scroll-adapters[langchain]` for `scroll_adapters.langchain`. They are built on the names in
`scroll_context.hosts`, as an adapter for any other framework would be. `telemetry` makes spans for
OpenTelemetry of any session, with a framework or without.
"""
