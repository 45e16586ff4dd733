"""Every name in the metadata of events that the code reads is in the one list of names."""

import re
from pathlib import Path

import scroll_context
from scroll_context.log.foreign import EXPORTED, RESERVED, SEQ_LIST_NAMES, SEQ_NAMES

_READ = re.compile(r"""metadata(?:\.get\(|\[|\.pop\()["'](\w+)["']|number_at\("(\w+)"\)""")

# An import may bring these. They are shown or counted, and nothing is done because of them.
_HARMLESS = {
    "media": "images and files of a message; addresses of an import are changed or dropped",
    "model": "the name of the model that replied",
    "thinking": "the thinking of a reply, which is sent to the provider that wrote it only",
    "sent": "how a host sent a request",
    "layout": "whether a request was made by a layout; an import cannot bring requests",
}


# These are read through constants, enumerations and structs, or by people.
_READ_OTHERWISE = """
    captured damaged_metadata erased host_id kind named_there payload_missing replaced_surrogates
    set_aside unredacted wire
""".split()


def test_every_name_that_the_code_reads_is_in_the_list() -> None:
    folder = Path(scroll_context.__file__).parent
    names: dict[str, Path] = {}
    for file in folder.rglob("*.py"):
        if file.parent.name in ("hosts", "importing"):
            # These read the metadata of other programs.
            continue
        for match in _READ.finditer(file.read_text()):
            names[match[1] or match[2]] = file
    assert len(names) > 20
    missing = {
        name: str(file.relative_to(folder))
        for name, file in names.items()
        if name not in RESERVED | EXPORTED and name not in _HARMLESS
    }
    assert missing == {}
    assert {*_READ_OTHERWISE} <= RESERVED and not RESERVED & EXPORTED
    assert {*SEQ_NAMES, *SEQ_LIST_NAMES} <= RESERVED | EXPORTED
