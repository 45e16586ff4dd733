"""Without an agent: import a chat, search it, expand a hit to the exact text, query it in SQL."""

import json
import tempfile
from pathlib import Path

from scroll_context import Store, import_file

CHAT = [
    {
        "role": "user",
        "content": "I always fly economy. Never offer me business class.",
        "created_at": "2026-02-03",
    },
    {"role": "assistant", "content": "Understood: economy only.", "created_at": "2026-02-03"},
    {"role": "user", "content": "Nadia is allergic to walnuts.", "created_at": "2026-04-12"},
]

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "chat.jsonl"
    file.write_text("".join(json.dumps(message) + "\n" for message in CHAT))
    with Store(Path(folder) / "store", create=True) as store:
        print(import_file(store, file).messages, "messages imported")
        print(import_file(store, file).added, "new when it is imported again")
        best = store.index.search("which cabin does the user fly", k=1)[0]
        print(f"seq {best.event.seq}: {best.event.content}")
        rows = (
            store.sql()
            .query("SELECT count(*) AS n FROM hist.conversation_history WHERE role = 'user'")
            .rows
        )
        print(rows[0]["n"], "of them by the user")
