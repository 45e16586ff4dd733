"""The events that each variable of a cell was computed from, according to its assignments.

For display only: `ms.provenance` shows it. Erasure uses the host's record of everything that a cell
was given (variables.py), which cannot miss anything; this can, where a value changes through
another name for it. The worker says on which line of the cell a call was made. A function that
makes the call counts for the line that called the function.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

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
