"""The cells published in the appendix of the Scroll paper run unmodified in the kernel and return
the right rows.

Each file in paper_cells/ is one code block, byte for byte, named by its label.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paper_history import SAID, build
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store

CELLS = Path(__file__).with_name("paper_cells")


def open_session(folder: Path, name: str) -> tuple[Store, Session]:
    store = Store(folder, create=True)
    build(store, name)
    # a search waits two seconds for it, which can be too short on a busy machine
    store.index.catch_up()
    session = Session.open(
        store,
        session_id="probe",
        agent_id="agent",
        task_id=name,
        options=SessionOptions(reach="task"),
    )
    return store, session


@pytest.fixture(params=["sprint", "events", "trip"], scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict]]:
    """One task's cells, run in order in one kernel; what each of them showed."""
    task = request.param
    store, session = open_session(tmp_path_factory.mktemp(task) / "store", task)
    prefix = {"sprint": ["ku"], "events": ["cr"], "trip": ["pf", "sum"]}[task]
    shown: dict[str, str] = {}

    def run(label: str, source: str) -> None:
        shown[label] = session.run(source, f"call_{label}").content

    for name in prefix:
        for file in sorted(CELLS.glob(f"{name}-c*.txt"), key=lambda f: int(f.stem.split("-c")[1])):
            source = file.read_text()
            run(file.stem, source)
            if (
                file.stem == "sum-c2"
            ):  # the published run repeats this cell with other offsets and keeps each page
                run("pages", "page0 = rows2")
                for page in (1, 2, 3):
                    run(f"sum-c2+{page}", source.replace("OFFSET 0", f"OFFSET {page}000"))
                    run("pages", f"rows{page + 2} = rows2")
                run("pages", "rows2 = page0")
    yield task, shown
    session.close()
    store.close()


def test_no_cell_fails(played: tuple[str, dict]) -> None:
    _, shown = played
    assert len(shown) >= 4
    for label, text in shown.items():
        assert "failed" not in text and "Traceback" not in text, f"{label}: {text}"


def seqs(text: str) -> list[int]:
    return [
        int(line.split()[0])
        for line in text.splitlines()
        if line.split() and line.split()[0].isdigit()
    ]


def test_what_the_cells_find(played: tuple[str, dict]) -> None:
    task, shown = played
    said = SAID[task]
    if task == "sprint":
        assert set(seqs(shown["ku-c0"])[:2]) == {8123, 8349}
        assert (
            "[cut: " in shown["ku-c1"] and "print less" in shown["ku-c1"]
        )  # as in the published run
        assert "seq=8047 role=user: [Session 42 | 2024-11-05] user:" in shown["ku-c1"]
        assert said[8123] in shown["ku-c3"] and said[8349] in shown["ku-c3"]
        assert shown["ku-c3"].index("seq=8123") < shown["ku-c3"].index("seq=8349")
        assert "assistant" not in shown["ku-c2"]
    elif task == "events":
        assert set(seqs(shown["cr-c0"])) >= {7496, 8434, 16899, 16900, 16902}
        assert 8867 in seqs(shown["cr-c1"])
        assert shown["cr-c2"].startswith(f"8867 user\n[Session 37 | 2023-07-15] user: {said[8867]}")
        assert shown["cr-c3"].count("seq ") == 30
        assert said[16900] in shown["cr-c4"] and said[16902] in shown["cr-c4"]
        assert shown["cr-c5"].count("seq ") == 21 and said[16901] in shown["cr-c5"]
        assert said[8868] in shown["cr-c6"] and shown["cr-c6"].count("seq ") == 4
        assert "seq 7496 [assistant]" in shown["cr-c7"] and "seq 8434 [assistant]" in shown["cr-c7"]
        assert all(seq >= 16900 for seq in seqs(shown["cr-c8"]))
    else:
        assert {25, 2335} <= set(seqs(shown["pf-c0"]))
        assert shown["pf-c1"].startswith("16614 [Session 75")
        assert all(seq >= 18323 for seq in seqs(shown["pf-c3"]))
        assert (
            "=== Session 1 user turns about Roadtrippers ===" in shown["pf-c4"]
            and said[25] in shown["pf-c4"]
        )
        assert seqs(shown["pf-c5"]) == list(range(18323, 18333))


def test_the_summarization_cells_page_through_everything(played: tuple[str, dict]) -> None:
    task, shown = played
    if task != "trip":
        pytest.skip("another task's cells")
    assert shown["sum-c0"].startswith("1000\n13611 61 2023-04-08")
    assert "[note] ms.sql_query: only the first 1,000 rows" in shown["sum-c0"]
    assert shown["sum-c1"].startswith(
        "1000 13611 14610 2023-04-13\n61 ['2023-04-08'] 188\n62 ['2023-04-09'] 222"
    )
    assert shown["sum-c2"].startswith("1000\n66 ['2023-04-13'] 278")
    assert shown["sum-c2+3"].splitlines()[-1].startswith("18058 2023-04-25")
    assert shown["sum-c6"].startswith("4448 13611 2023-04-08 18058 2023-04-25")
    assert "77 ['2023-04-22'] 470" not in shown["sum-c7"] and "=== Session 77 (" in shown["sum-c7"]
    assert shown["sum-c8"].count("########## SESSION") == 7
    assert 15489 in seqs(shown["sum-c9"])
    assert shown["sum-c10"].count("=== seq") == 8
    assert "HIT 16009" in shown["sum-c11"] and "HIT 16018" in shown["sum-c11"]
    assert SAID["trip"][16685] in shown["sum-c12"] and SAID["trip"][17712] in shown["sum-c12"]
