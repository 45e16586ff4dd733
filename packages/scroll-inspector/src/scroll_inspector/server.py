"""Serving the site, and its guard: who may see it, and what a browser may do with a page.

The token stands in the address that `scroll serve` prints. The first request with it gets a cookie
and is sent on to the same address without it, so that the token stays out of the history, of
bookmarks and of what is sent to others. A page of another site cannot read anything here: its
requests name another host, or come without the cookie.
"""

import hashlib
import hmac
import socket
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scroll_context.connections import configuration
from scroll_context.errors import PayloadDamaged, PayloadMissing, ScrollError, StoreError
from scroll_inspector.app import routes
from scroll_inspector.inspector import Inspector

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
WRONG_TOKEN = "This inspector needs its token: open the address that `scroll serve` printed.\n"


class Guard:
    """Refuses every request that is not a read by the holder of the token."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str], cookie: str) -> None:
        self._app = app
        self._token = token
        # Browsers keep cookies in files, and send them to every port of a host: the token itself is
        # not for them.
        self._cookie_value = hmac.new(
            token.encode(), b"cookie of the inspector", hashlib.sha256
        ).hexdigest()
        self._hosts = frozenset(host.lower() for host in hosts)
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer instead of the page; None lets the request pass."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("This host is not served here.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The inspector only reads.\n", 405, {"allow": "GET, HEAD"})
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(query).get("token")
        if token is not None and _is_same(token, self._token):
            return self._signed_in(scope, query)
        if token is not None or not self._has_cookie(headers):
            return PlainTextResponse(WRONG_TOKEN, 401)
        return None

    def _signed_in(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """Sends the holder of the token on to the same address without it, with a cookie."""
        raw_path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        # Two slashes at the beginning would name another host.
        address = "/" + raw_path.lstrip("/")
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        if rest:
            address += f"?{rest}"
        answer = RedirectResponse(address, 303)
        answer.set_cookie(self._cookie, self._cookie_value, httponly=True, samesite="lax")
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return False
        cookie = cookies.get(self._cookie)
        return cookie is not None and _is_same(cookie.value, self._cookie_value)


def _is_same(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())


# serving ------------------------------------------------------------------------------------------


def application(
    inspector: Inspector, *, token: str, hosts: list[str], cookie: str = "scroll"
) -> Starlette:
    """The site behind its guard."""

    def refused(_: Request, error: Exception) -> Response:
        status = 400
        message = str(error)
        if isinstance(error, HTTPException):
            status = error.status_code
            message = error.detail
        elif isinstance(error, PayloadMissing | PayloadDamaged):
            status = 404
        elif isinstance(error, StoreError):
            status = 503
        return inspector.page("error.html", status, status_code=status, message=message)

    guard = Middleware(Guard, token=token, hosts=hosts, cookie=cookie)
    # A seq of forty digits raises OverflowError.
    handlers: Any = dict.fromkeys((HTTPException, ScrollError, OverflowError), refused)
    return Starlette(routes=routes(inspector), middleware=[guard], exception_handlers=handlers)


def hosts_of(host: str, port: int, names: tuple[str, ...] = ()) -> list[str]:
    """The values of the Host header that mean this server."""
    hosts = dict.fromkeys(["127.0.0.1", "localhost", "[::1]", _in_url(host), *names])
    with_port = [f"{name}:{port}" for name in hosts]
    return [*with_port, *hosts] if port == 80 else with_port


def server(inspector: Inspector, token: str, hosts: list[str], port: int) -> uvicorn.Server:
    """A server of the site.

    The name of its cookie has the port in it, since browsers do not tell ports apart.
    """
    app = application(inspector, token=token, hosts=hosts, cookie=f"scroll-{port}")
    config = configuration(app, timeout_graceful_shutdown=3, server_header=False, lifespan="off")
    return InspectorServer(config, inspector)


class InspectorServer(uvicorn.Server):
    """Ends the live streams before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, inspector: Inspector) -> None:
        super().__init__(config)
        self._inspector = inspector

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._inspector.closing = True
        await super().shutdown(sockets)


def address(host: str, port: int, token: str, path: str = "/") -> str:
    """The address that a person opens in a browser."""
    return f"http://{_in_url(host)}:{port}{path}?{urlencode({'token': token})}"


def _in_url(host: str) -> str:
    """A host as a URL spells it: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host else host
