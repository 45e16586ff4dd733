"""A made-up checkout of LOCA-bench around the stub server, and trials in it."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import loca_stub
from scroll_context.messages import ToolCall
from scroll_context.models import Reply
from scroll_evals.loca import LocaSuite, LocaTrial
from scroll_evals.loca_environment import ServerEnvironment

ENVIRONMENT = ServerEnvironment(Path(sys.executable), ())
CLAIM = "claim_done_claim_done"
SUM = "total = sum(one['total'] for one in shop_list_orders())\nfiles_write('total.txt', str(total))\nprint(total)"


def entry(fault: str = "", seed: int = 42, name: str = "Shop-3-orders") -> dict[str, Any]:
    servers = {
        "shop": {"enabled": True},
        "files": {},
        "claim_done": {},
        "disabled": {"enabled": False},
    }
    return {
        "name": name,
        "env_class": "gem.envs.shop_s2l.shop_s2l.ShopS2LEnv",
        "env_params": {"seed": seed, "fault": fault},
        "mcp_servers": servers,
    }


def make_checkout(
    folder: Path, entries: Sequence[Any] = (), *, start: str = "", size: str = "8k"
) -> Path:
    server = folder / "gem" / "server" / "http_server.py"
    server.parent.mkdir(parents=True)
    shutil.copy(loca_stub.__file__, server)
    lists = folder / "inference" / "react"
    lists.mkdir(parents=True)
    (lists / f"final_{size}_set_config_multi_seed.json").write_text(
        json.dumps({"configurations": list(entries)})
    )
    if start:
        (folder / "stub.json").write_text(json.dumps({"start": start}))
    return folder


def make_trial(folder: Path, fault: str = "", *, start: str = "", **options: Any) -> LocaTrial:
    checkout = make_checkout(folder / "checkout", [entry(fault)], start=start)
    (trial,) = LocaSuite(
        checkout=checkout, sizes=["8k"], python=Path(sys.executable), **options
    ).trials()
    assert isinstance(trial, LocaTrial)
    return trial


def native(name: str, **arguments: Any) -> Reply:
    return Reply(tool_calls=(ToolCall("", name, arguments),), finish_reason="tool_call")


def requests_made(work: Path) -> list[str]:
    """The endpoints that the stub was asked, in order."""
    (file,) = work.glob("*/requests.txt")
    return file.read_text().split()
