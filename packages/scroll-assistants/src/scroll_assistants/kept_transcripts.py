"""How long Claude Code keeps its transcripts, and which sessions only Scroll still has.

Claude Code deletes a transcript when it is 30 days old, or after `cleanupPeriodDays` of its
settings. Events that Scroll has recorded remain.
"""

import json
import os
from pathlib import Path
from typing import Any

from scroll_context.log.log import EventLog

SETTING = "cleanupPeriodDays"
DEFAULT_DAYS = 30
# Ten years.
MANY_DAYS = 3_650


def claude_folder() -> Path:
    """The folder of Claude Code's own files."""
    moved = os.environ.get("CLAUDE_CONFIG_DIR")
    return Path(moved) if moved else Path.home() / ".claude"


def kept_days() -> int:
    """The days after which Claude Code deletes a transcript."""
    try:
        settings: Any = json.loads((claude_folder() / "settings.json").read_text("utf-8"))
        days = settings.get(SETTING)
    except (OSError, ValueError, AttributeError):
        return DEFAULT_DAYS
    return days if isinstance(days, int) and days >= 0 else DEFAULT_DAYS


_SESSIONS = """
    WITH RECURSIVE names(id) AS (
        SELECT min(session_id) FROM event
        UNION ALL
        SELECT (SELECT min(session_id) FROM event WHERE session_id > id)
        FROM names WHERE id IS NOT NULL
    )
    SELECT id FROM names JOIN event ON seq = (SELECT min(seq) FROM event WHERE session_id = id)
    WHERE instr(id, '/') = 0 AND agent_id = 'claude-code'"""
"""Sessions of Claude Code. Each session name costs a step in the index of sessions. A session with
a slash in its name belongs to a sub-agent, whose transcript lies beside that of its session."""


def deleted_sessions(log: EventLog) -> int:
    """How many recorded sessions of Claude Code have no transcript on this machine any more."""
    transcripts = {file.stem for file in (claude_folder() / "projects").glob("*/*.jsonl")}
    return sum(name not in transcripts for (name,) in log.query(_SESSIONS, []))
