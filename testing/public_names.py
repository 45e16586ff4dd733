"""What the tests of public names share: the names of a package, their table and their examples.

A package with public names has a table `PUBLIC` of them by the module that defines them.
"""

import ast
import doctest
import inspect
from types import ModuleType


def examples_of(module: ModuleType, name: str) -> list[doctest.Example]:
    """The examples in the docstring of a public name."""
    return doctest.DocTestParser().get_examples(inspect.getdoc(getattr(module, name)) or "")


def names_for_type_checkers(module: ModuleType) -> dict[str, str]:
    """The names that a module imports for type checkers only, with their modules."""
    tree = ast.parse(inspect.getsource(module))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    pairs = [(alias, node.module) for node in imports for alias in node.names]
    assert all(alias.asname == alias.name for alias, _ in pairs), "an import without `as`"
    return {alias.name: str(home) for alias, home in pairs}


def names_of_table(module: ModuleType) -> dict[str, str]:
    """The public names of a module by its table, with the modules that define them."""
    top = module.__name__.partition(".")[0]
    return {name: f"{top}.{home}" for home, names in module.PUBLIC.items() for name in names}


def failures_of_example(module: ModuleType, name: str) -> str:
    """Run the example of a public name in the current folder; what went wrong."""
    examples = examples_of(module, name)
    if not any(example.want for example in examples):
        return f"{name} has no example in its docstring"
    test = doctest.DocTest(examples, {}, name, None, None, None)
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    return "".join(report)
