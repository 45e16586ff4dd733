"""A process of its own that runs attacks: one line of JSON asks, one line answers.

It has one thread and everything imported, so that each attack is a fork away. A request names the
attack, the tier ("" for no jail at all) and the user to run as (null for the one who runs the
tests).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback

import attack_names
from attack_table import ATTACKS
from attack_world import World, become
from attacks_on_limits import LIMITS

from scroll_context.jail.entry import enter
from scroll_context.jail.spec import JailSpec, default_read_only

_HOLD_SECONDS = 20.0
_DEADLINE_SECONDS = 60.0
_READ_ONLY = default_read_only()
_REFUSALS = (OSError, MemoryError)


def main() -> None:
    worlds: dict[int | None, World] = {}
    for line in sys.stdin:
        request = json.loads(line)
        user = request["user"]
        world = worlds.pop(user, None) or World(user)
        answer = run(world, **request)
        print(json.dumps(answer), flush=True)
        if request["tier"] and not answer["damage"]:
            world.empty_scratch()
            worlds[user] = world  # nothing happened to it
        else:
            world.close()
    for world in worlds.values():
        world.close()


def run(world: World, attack: str, tier: str, user: int | None) -> dict[str, str]:
    """How it ended: `through`, `refused`, `killed` or `broken`, with the details, and what it
    damaged.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _attack_and_exit(attack, tier, user, world, writer)
    os.close(writer)
    said = _read_all(reader, child)
    _, status = os.waitpid(child, 0)
    how, _, detail = said.partition(" ")
    if not said:
        how, detail = "killed", f"status {os.waitstatus_to_exitcode(status)}"
    if "EXECUTED" in said:
        how = "through"
    return {"how": how, "detail": detail, "damage": world.damage()}


def _read_all(reader: int, child: int) -> str:
    said = b""
    while select.select([reader], [], [], _DEADLINE_SECONDS)[0]:
        part = os.read(reader, 65536)
        said += part
        if not part:
            break
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    return said.decode(errors="replace")


def _attack_and_exit(name: str, tier: str, user: int | None, world: World, answer: int) -> None:
    attack = ATTACKS[name]
    try:
        become(user)
        ctypes.CDLL(None).prctl(
            4, 1, 0, 0, 0
        )  # dumpable, as a process that was started by that user would be
        targets = world.targets(answer, attack_names.environment_address("SCROLL_ATTACK_SECRET"))
        os.chdir(targets.scratch)
        os.dup2(world.inherited, 0)
        os.dup2(world.inherited, 1)
        if tier:
            kept = {answer, *([world.terminal] if attack.keeps_terminal else [])}
            readable = [
                path for path in (*_READ_ONLY, targets.declared) if os.access(path, os.R_OK)
            ]
            enter(
                JailSpec(
                    tier=tier, read_only=tuple(readable), scratch=targets.scratch, limits=LIMITS
                ),
                keep=kept,
            )
    except BaseException:
        _say(answer, f"broken before the attack: {traceback.format_exc()}")
    names = attack_names.prelude(targets)
    names["hold"] = lambda: time.sleep(_HOLD_SECONDS if tier else 0)
    _say(answer, _execute(attack.source, names))


def _execute(source: str, names: dict[str, object]) -> str:
    try:
        exec(compile(source, "<attack>", "exec"), names)
    except _REFUSALS as refusal:
        return f"refused {type(refusal).__name__}: {refusal}"
    except RuntimeError as refusal:
        return f"{'refused' if 'thread' in str(refusal) else 'broken'} {refusal}"
    except BaseException:
        return f"broken {traceback.format_exc()}"
    evidence = names.get("evidence")
    return f"through {str(evidence)[:200]!r}" if evidence else "refused no evidence"


def _say(answer: int, text: str) -> None:
    os.write(answer, text.encode())
    os._exit(0)


if __name__ == "__main__":
    main()
