"""The addresses of the site, and the page or fragment behind each."""

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from scroll_inspector.fragments import Fragments
from scroll_inspector.inspector import Inspector
from scroll_inspector.pages import Pages


class SeqConvertor(IntegerConvertor):
    """A number in a path, of at most 18 digits: Python refuses to read thousands of them."""

    regex = "[0-9]{1,18}"


register_url_convertor("seq", SeqConvertor())


def routes(inspector: Inspector) -> list[Route | Mount]:
    """The pages of an inspector, and the parts of them that are loaded later.

    They are plain functions, which Starlette runs in threads.
    """
    pages, fragments = Pages(inspector), Fragments(inspector)
    return [
        Route("/", pages.sessions),
        Route("/search", pages.search),
        Route("/session/{session:path}", pages.session),
        Route("/pressure/{session:path}", pages.pressure),
        Route("/event/{seq:seq}", pages.event),
        Route("/events/{lo:seq}-{hi:seq}", pages.events),
        Route("/request/{seq:seq}", pages.request),
        Route("/request/{seq:seq}/index", pages.index),
        Route("/request/{seq:seq}/variables", pages.variables),
        Route("/steps/{session:path}", fragments.steps),
        Route("/live/{session:path}", fragments.live),
        Route("/event/{seq:seq}/text", fragments.text),
        Route("/event/{seq:seq}/tree", fragments.tree),
        Route("/event/{seq:seq}/metadata", fragments.metadata),
        Route("/event/{seq:seq}/download", fragments.download),
        Route("/event/{seq:seq}/image", fragments.image),
        Route("/request/{seq:seq}/message/{position:seq}", fragments.message),
        Route("/request/{seq:seq}/tools", fragments.tools),
        Route("/request/{seq:seq}/left/{plan:seq}", fragments.left),
        Mount("/static", StaticFiles(packages=[("scroll_inspector", "static")])),
    ]
