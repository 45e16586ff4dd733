"""Who may see the inspector: requests that name this host and bear its token; and what a browser may do with a page.

The token stands in the address that `scroll serve` prints. The first request with it gets a cookie and is sent on to
the same address without it, so that the token stays out of the history, of bookmarks and of what is sent to others.
A page of another site cannot read anything here: its requests name another host, or come without the cookie.
"""

import hmac
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Refuses whatever is not a read by the holder of the token, before anything else looks at it."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str], cookie: str) -> None:
        self._app = app
        self._token = token
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
        """What is answered instead of the page; None lets the request pass."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("This host is not served here.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The inspector only reads.\n", 405, {"allow": "GET, HEAD"})
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None:
            if not self._is_token(given):
                return PlainTextResponse(WRONG_TOKEN, 401)
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            path = "/" + scope.get("raw_path", scope["path"].encode()).decode("latin-1").lstrip("/")
            answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return answer
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return PlainTextResponse(WRONG_TOKEN, 401)
        if self._cookie not in cookies or not self._is_token(cookies[self._cookie].value):
            return PlainTextResponse(WRONG_TOKEN, 401)
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())
