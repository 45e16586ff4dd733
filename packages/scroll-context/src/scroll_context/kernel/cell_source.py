"""What the host can tell from the source of a cell. Host only.

For erasures, which must find everything: the names that a source reads, those that its functions
read whenever they run, and whether it may use files. Where a source could do more than its words
tell, the answer is "anything".

For display: the events that each variable was computed from, according to the assignments
(`assigned_from`; `ms.provenance` shows it). This can miss a value that changes through another name
for it, so no erasure relies on it. The worker says on which line of the cell a call was made. A
function that makes the call counts for the line that called the function.
"""

import ast
import contextlib
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from scroll_context.kernel.names import NOT_COMPILED, names_used
from scroll_context.kernel.names import names_read_later as names_of_definitions

PARSED_CHARS = 10_000
"""Longer sources are not parsed on the host, which would hold the interpreter lock.

Parsing takes up to 40 ms for 10,000 characters, and 11 s were seen for an f-string of 180,000.
"""
# A source with one of these words may read any variable without naming it.
_ANY_NAME = re.compile(
    r"\b(?:globals|locals|vars|eval|exec|__main__|__globals__|f_globals|f_locals|f_back|modules"
    r"|gc|inspect|ctypes)\b"
)
# A source with one of these words may write files of the kernel, or read them.
_FILES = re.compile(
    r"\b(?:\w*open\w*|Path|pathlib|linecache|runpy|fileinput|configparser|ConfigParser|logging"
    r"|FileIO|ElementTree|ET|importlib|__import__|pkgutil|zipimport|mmap|codecs|tokenize|shutil"
    r"|tempfile|glob|sqlite3|shelve|dbm|zipfile|tarfile|gzip|bz2|lzma|h5py|os\.\w+"
    r"|(?:to|read|write|scan|sink)_(?:csv|json|parquet|pickle|excel|feather|hdf|sql|text|bytes"
    r"|table|xml|html|ndjson)"
    r"|savefig|savetxt|loadtxt|genfromtxt|memmap|imread|imsave|tofile|fromfile"
    r"|savez?(?=\()|load(?=\()|dump(?=\())\b"
)
_IMPORTED = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
# The start of code that may run, and read names, after its cell has ended.
_DEFINES = re.compile(r"\b(?:def|lambda|class|for)\b")
_WORD = re.compile(r"\w+")
_LOOP = re.compile(r"^[ \t]*(?:async[ \t]+)?for\s([\w\s,()*]{1,60}?)\sin\b", re.MULTILINE)
# So much of a cell is searched for loops.
_LOOP_CHARS = 10_000


def names_read(source: str, existing: Container[str]) -> frozenset[str] | None:
    """The existing names that a source reads when it runs; None when it may be any."""
    if _ANY_NAME.search(source):
        return None
    if source.isascii() and not any(word in existing for word in _WORD.findall(source)):
        return frozenset()
    if len(source) > PARSED_CHARS:
        return None
    try:
        return names_used(source, "<cell>", existing).read
    except SyntaxError:
        # It does not run.
        return frozenset()
    except NOT_COMPILED:
        return None


def names_read_later(source: str) -> frozenset[str] | None:
    """The names that definitions in a source read whenever they run; None if that may be any."""
    if not _DEFINES.search(source):
        return frozenset()
    if len(source) <= PARSED_CHARS and not _ANY_NAME.search(source):
        with contextlib.suppress(*NOT_COMPILED):
            return names_of_definitions(source, "<cell>")
    return None


def may_use_files(source: str) -> bool:
    """Whether a source may read or write files of the kernel, as far as its words tell."""
    if _FILES.search(source):
        return True
    # A module outside the standard library may be a file that a cell wrote.
    return any(name not in sys.stdlib_module_names for name in _IMPORTED.findall(source))


def loop_names(source: str) -> set[str]:
    """The names that the `for` statements of a source bind."""
    names: set[str] = set()
    if "for" in source:
        for targets in _LOOP.findall(source, 0, _LOOP_CHARS):
            names.update(_WORD.findall(targets))
    return names


# the events behind assignments --------------------------------------------------------------------

Seqs = frozenset[int]
NOTHING: Seqs = frozenset()
# The line of calls by threads, which belong to no line.
ANY_LINE = 0
_MUTATORS = frozenset(
    "add append appendleft extend extendleft insert setdefault update subtract write".split()
)


def assigned_from(
    source: str, lines: Mapping[int, Seqs], before: Callable[[str], Seqs]
) -> dict[str, Seqs]:
    """The events behind each name that a source binds or changes.

    `lines` has the events that the calls on each line were given, `before` those behind a variable
    of an earlier cell. Raises what parsing raises.
    """
    flow = _Flow(lines, before)
    flow.block(ast.parse(source).body)
    return flow.names


class _Flow:
    """The events behind each name, statement by statement."""

    def __init__(self, lines: Mapping[int, Seqs], before: Callable[[str], Seqs]) -> None:
        self._lines = lines
        self._before = before
        # The events behind the values of the loops around a statement.
        self._loops: list[Seqs] = []
        self.names: dict[str, Seqs] = {}

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.For() | ast.AsyncFor():
                self._loop(statement)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, self._behind(item.context_expr))
                self.block(statement.body)
            case ast.If() | ast.While():
                self._changes(statement.test)
                self.block(statement.body)
                self.block(statement.orelse)
            case ast.Try():
                for part in (statement.body, statement.orelse, statement.finalbody):
                    self.block(part)
                for handler in statement.handlers:
                    self.block(handler.body)
            case ast.Match():
                for case in statement.cases:
                    self.block(case.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.names[statement.name] = self._read(_loaded(statement))
            case ast.Assign():
                for target in statement.targets:
                    self._assign(target, self._behind(statement.value, statement))
            case ast.AnnAssign() if statement.value is not None:
                self._assign(statement.target, self._behind(statement.value, statement))
            case ast.AugAssign():
                seqs = self._behind(statement.value, statement).union(*self._loops)
                self._add(statement.target, seqs)
        if not hasattr(statement, "body"):
            self._changes(statement)

    def _loop(self, loop: ast.For | ast.AsyncFor) -> None:
        items = self._behind(loop.iter)
        self._assign(loop.target, items)
        self._loops.append(items)
        # Twice, since what one round binds the next one reads.
        for _ in range(2):
            self.block(loop.body)
        self._loops.pop()
        self.block(loop.orelse)

    def _changes(self, node: ast.AST) -> None:
        """Names that calls such as `rows.append(row)` and `:=` inside a node change."""
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                self._assign(part.target, self._behind(part.value))
            elif isinstance(part, ast.Call) and _is_mutator(part.func):
                self._add(part.func.value, self._behind(part).union(*self._loops))

    def _assign(self, target: ast.expr, seqs: Seqs) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = seqs
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._assign(element, seqs)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, seqs)
        else:
            self._add(target, seqs)

    def _add(self, target: ast.expr, seqs: Seqs) -> None:
        """More events behind the variable that a target belongs to."""
        root = target
        while isinstance(root, ast.Subscript | ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            own = self._read([root.id])
            if seqs - own or root.id in self.names:
                self.names[root.id] = own | seqs

    def _behind(self, value: ast.expr, statement: ast.stmt | None = None) -> Seqs:
        """The events behind an expression: the names that it reads, and the calls on its lines."""
        node = statement or value
        seqs = self._read(_loaded(value)) | self._lines.get(ANY_LINE, NOTHING)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            seqs |= self._lines.get(line, NOTHING)
        return seqs

    def _read(self, names: Iterable[str]) -> Seqs:
        seqs = NOTHING
        for name in names:
            seqs |= self.names[name] if name in self.names else self._before(name)
        return seqs


def _is_mutator(function: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(function, ast.Attribute) and function.attr in _MUTATORS


def _loaded(node: ast.AST) -> Iterator[str]:
    """The names that a node reads, without those that its comprehensions bind."""
    own: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.comprehension):
            own |= {name.id for name in ast.walk(part.target) if isinstance(name, ast.Name)}
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id not in own:
            yield part.id
