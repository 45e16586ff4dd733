"""Run by test_killed_runs.py in a process of its own: a run whose models note every call, and kill
it at one of them.

`kill at N after S`: S seconds after the Nth call of this process was answered, wherever the run is
by then. With 0 seconds it is killed before the answer arrives, so that a busy machine cannot let it
finish.
"""

import itertools
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from scroll_context.models import Request
from small import agent_model, diligent, fair, judge_model, runner, thing_asked


def main(run: Path, ledger: Path, last: int, after: float) -> None:
    calls = itertools.count(1)

    def noted(who: str, script: Any, about: Any) -> Any:
        def answer(request: Request, step: int) -> Any:
            reply = script(request, step)
            with ledger.open("ab", buffering=0) as out:
                out.write(f"{os.getpid()} {who} {about(request)}\n".encode())
            if next(calls) == last:
                if not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return reply

        return answer

    def item(request: Request) -> str:
        prompt = request.messages[-1].text
        thing = prompt.partition("QUESTION:\n")[2].partition("?")[0].split()[-1]
        return thing + ("+polite" if "is polite" in prompt else "")

    agent = agent_model(noted("agent", diligent, thing_asked))
    judge = judge_model(noted("judge", fair, item))
    summary = runner(run, agent, judge, jobs=2).run()
    print(summary.scored, summary.scores.overall, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
