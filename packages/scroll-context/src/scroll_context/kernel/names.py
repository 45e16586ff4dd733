"""The names that a source reads and binds, as the compiler sees them. Worker and host.

The compiler's symbol tables tell, also for the functions and classes in the source. They do not say
in which order a cell reads and binds a name, and leave out some reads; for names that have a value
already, the syntax tree decides. Access by `globals()`, or by another name for an object, does not
show here.
"""

# The module `symtable` wraps `_symtable` in objects, which are slow.
import _symtable  # type: ignore[import-not-found]
import ast
import re
from collections.abc import Container, Iterable, Iterator
from typing import Any

import msgspec

NOT_COMPILED = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
"""Errors for a source that cannot be compiled, or is too large to be examined."""

_PARSE = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
_GLOBAL = (_symtable.GLOBAL_EXPLICIT, _symtable.GLOBAL_IMPLICIT)
_ASSIGNED = _symtable.DEF_LOCAL | _symtable.DEF_IMPORT
# Since Python 3.12 a comprehension has no symbol table of its own. Its names are entered into the
# table around it, unless they are there already. The names that it iterates with have this flag,
# for which `_symtable` has no name.
_ITERATED = 2 << 8
# Augmented assignments and comprehensions may read names without a sign in the symbol tables.
_READS_WITHOUT_SIGN = re.compile(r"[-+*/%&|^@<>]=|\bfor\b")


class NamesUsed(msgspec.Struct, frozen=True):
    """The names of the namespace whose values a cell can see, and those that it binds."""

    read: frozenset[str]
    bound: frozenset[str]


NO_NAMES = NamesUsed(frozenset(), frozenset())


def names_used(source: str, filename: str, existing: Container[str]) -> NamesUsed:
    """The existing names that `source` reads, and the names that it binds."""
    read: set[str] = set()
    bound: set[str] = set()
    module = _symtable.symtable(source, filename, "exec")
    for table in _with_inner(module):
        for name, flags in table.symbols.items():
            if flags & _ITERATED:
                continue
            if table is module or _is_global(flags):
                if flags & _symtable.USE:
                    read.add(name)
                if flags & _ASSIGNED:
                    bound.add(name)
    bound_again = {name for name in bound if name in existing}
    may_be_read = bound_again & read
    has_unseen_reads = may_be_read != bound_again and _READS_WITHOUT_SIGN.search(source)
    if may_be_read or has_unseen_reads:
        tree = compile(source, filename, "exec", _PARSE, dont_inherit=True)
        may_be_read |= bound_again & _read_without_sign(tree)
        may_be_read -= _bound_before_read(tree, may_be_read)
    return NamesUsed(frozenset((read - bound) | may_be_read), frozenset(bound))


def names_read_later(source: str, filename: str) -> frozenset[str]:
    """The names that functions, classes and generators in `source` read whenever they run."""
    names: set[str] = set()
    module = _symtable.symtable(source, filename, "exec")
    for table in _with_inner(*module.children):
        for name, flags in table.symbols.items():
            if _is_global(flags) and flags & _symtable.USE:
                names.add(name)
    return frozenset(names)


def _with_inner(*tables: Any) -> Iterator[Any]:
    """Symbol tables, and those of the functions and classes inside."""
    pending = list(tables)
    while pending:
        table = pending.pop()
        pending += table.children
        yield table


def _is_global(flags: int) -> bool:
    return (flags >> _symtable.SCOPE_OFF) & _symtable.SCOPE_MASK in _GLOBAL


def _read_without_sign(tree: ast.Module) -> set[str]:
    """Names that are read in augmented assignments and comprehensions."""
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read.add(node.target.id)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
            iterated: set[str] = set()
            for generator in node.generators:
                iterated.update(_targets(generator.target))
            for part in ast.walk(node):
                if not isinstance(part, ast.Name) or part.id in iterated:
                    continue
                if not isinstance(part.ctx, ast.Store):
                    read.add(part.id)
    return read


def _bound_before_read(tree: ast.Module, names: Iterable[str]) -> set[str]:
    """Those of the names that a cell surely binds before anything in it reads them.

    The cell does not see their old values.
    """
    undecided = set(names)
    fresh: set[str] = set()
    for statement in tree.body:
        if not undecided:
            break
        assigned = _assigned(statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                is_bound_here = node.id in assigned and isinstance(node.ctx, ast.Store)
                if not is_bound_here:
                    undecided.discard(node.id)
        fresh |= assigned & undecided
        undecided -= assigned
    return fresh


def _assigned(statement: ast.stmt) -> set[str]:
    """The names that an assignment binds in any case; none for other statements."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    names: set[str] = set()
    for target in targets:
        names.update(_targets(target))
    return names


def _targets(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Name):
        return [target.id]
    names: list[str] = []
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            names += _targets(element)
    return names
