"""Pictures of the inspector for the documentation, of the store that the demonstration leaves: `make
screenshots`.

Needs Chromium (`make browser`). Pictures have a palette of 128 colours, which keeps each well under
150 kB.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from scroll_context.session.past import Past
from scroll_context.store import Store

TARGET = Path(__file__).parents[1] / "docs" / "img"
SESSION = "trip-4-september"
COMMAND = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit(
        "chromium is not installed; `make browser` installs it"
    )
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        subprocess.run(
            [*COMMAND, "demo", "--fast", "--keep", str(store)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with Store(store, read_only=True) as opened:
            past = Past(opened, SESSION)
            past.catch_up()
            request = next(
                event.seq for event in past.requests if event.seq > past.evictions[1].seq
            )
        server = subprocess.Popen(
            [*COMMAND, "serve", "--store", str(store), "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"SCROLL_SERVE_TOKEN": "t"},
        )
        try:
            assert server.stderr
            match = re.search(r"http://[\d.:]+", server.stderr.readline())
            assert match
            take(chromium, match[0], request)
        finally:
            server.terminate()
            server.wait(20)


def take(chromium: str, address: str, request: int) -> None:
    pictures = [
        ("inspector-request", f"/request/{request}", 1100, 1040, "light"),
        ("inspector-session", f"/session/{SESSION}", 1100, 800, "light"),
        ("inspector-pressure", f"/pressure/{SESSION}", 1100, 640, "dark"),
        ("inspector-phone", f"/request/{request}", 390, 800, "dark"),
    ]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, path, width, height, scheme in pictures:
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page = context.new_page()
            page.goto(f"{address}/?token=t")
            page.goto(address + path, wait_until="load")
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(128)
            file = TARGET / f"{name}.png"
            picture.save(file, optimize=True)
            print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
