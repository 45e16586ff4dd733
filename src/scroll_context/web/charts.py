"""Charts as SVG, made here from numbers: a browser only draws them. Colours are classes of the style sheet."""

from markupsafe import Markup

from scroll_context.web.seen import Page

WIDTH = 1000


def token_bar(page: Page) -> Markup:
    """The tokens of a request by what they are for, against the window and its marks; below, the repeated prefix."""
    total = sum(part.tokens for part in page.parts)
    window = max(page.window, total, 1)
    scale = WIDTH / window
    pieces: list[Markup] = []
    x = 0.0
    for part in page.parts:
        width = part.tokens * scale
        pieces.append(
            Markup(
                '<rect class="t-{}" x="{:.1f}" y="14" width="{:.1f}" height="22"><title>{}: {:,}</title></rect>'
            ).format(part.name, x, max(width, 0.5), part.label, part.tokens)
        )
        x += width
    before = sum(part.tokens for part in page.parts if part.name in ("tools",))
    prefix = min((page.difference.prefix_tokens + before) * scale, WIDTH) if page.difference.prefix_tokens else 0
    if prefix:
        pieces.append(
            Markup('<rect class="prefix" x="0" y="40" width="{:.1f}" height="5"><title>{}</title></rect>').format(
                prefix, "the same as at the beginning of the request before"
            )
        )
    for share, name in ((page.high, "high mark"), (page.low, "low mark")):
        at = share * WIDTH * page.window / window
        anchor = "end" if at > WIDTH * 0.9 else "start"
        pieces.append(
            Markup(
                '<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="2" y2="46"/>'
                '<text class="label" x="{1:.1f}" y="10" text-anchor="{2}">{3}</text>'
            ).format(at, at + (-4 if anchor == "end" else 4), anchor, name)
        )
    return Markup(
        '<svg class="bar" viewBox="0 0 {} 48" preserveAspectRatio="none" role="img" '
        'aria-label="{:,} tokens by use, in a window of {:,}">'
        '<rect class="track" x="0" y="14" width="{}" height="22"/>{}</svg>'
    ).format(WIDTH, total, page.window, WIDTH, Markup("").join(pieces))
