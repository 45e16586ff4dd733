"""The frameworks that `make test-hosts` runs: none is forgotten, and none is only named."""

import subprocess

from benchmarks import hosts

MODULES = hosts.ADAPTERS / "src/scroll_adapters"


def test_every_adapter_is_run() -> None:
    adapters = {file.stem for file in MODULES.glob("[a-z]*.py")}
    assert adapters <= set(hosts.FRAMEWORKS)
    # It has no module of its own.
    assert set(hosts.FRAMEWORKS) - adapters == {"qwenpaw"}


def test_every_framework_has_tests_and_requirements() -> None:
    for name in hosts.FRAMEWORKS:
        assert (hosts.ADAPTERS / f"tests/test_{name}.py").is_file(), name
        # A lowest version is the floor of each requirement.
        assert all(">=" in line for line in hosts.requirements(name)), name


def test_the_network_is_off_where_the_system_allows_it() -> None:
    prefix = hosts.without_network()
    if prefix:
        seen = subprocess.run(
            [*prefix, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True
        )
        interfaces = [line.split(":")[0].strip() for line in seen.stdout.splitlines()[2:]]
        assert interfaces == ["lo"]


def test_the_table_names_failures_and_versions_that_were_not_tested() -> None:
    rows = [
        {
            "framework": "langchain",
            "version": "newest",
            "packages": ["langchain==1.4.7"],
            "newer": ["langchain==1.5.0"],
            "tests": "9 passed",
            "passed": True,
            "without": 4_790_541,
            "with": 767_226,
        },
        {"framework": "harbor", "version": "lowest", "tests": "needs Python", "passed": False},
    ]
    _, langchain, harbor = hosts.table(rows).splitlines()
    assert "langchain==1.4.7 (langchain==1.5.0 cannot be installed)" in langchain
    assert langchain.endswith("4,790,541       767,226")
    assert harbor.endswith("FAILED: needs Python")
