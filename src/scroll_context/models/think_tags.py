"""Separating `<think>` blocks from the answer in streamed text.

Open-weight models write their reasoning into the text, in tags, and a stream cuts the text anywhere, in the
middle of a tag too. A block is recognised only at the head of the reply (before any visible text), where
such models put it: a tag further on is something the model is writing about, and stays text. Whatever the
cuts, the same text gives the same result, and no character other than tags and the space around blocks is
dropped.
"""

OPEN = "<think>"
CLOSE = "</think>"


class ThinkTags:
    """Feed text in pieces; what comes back is visible. `thinking` holds one entry for each block."""

    def __init__(self) -> None:
        self.thinking: list[str] = []
        self._pending = ""  # text whose meaning depends on what follows
        self._inside = False
        self._at_head = True

    def feed(self, piece: str) -> str:
        """The visible text that is certain after this piece."""
        if not self._at_head:
            return piece
        self._pending += piece
        while True:
            if self._inside:
                if not self._take_thought():
                    return ""
            elif not self._enter_block():
                break
        if OPEN.startswith(self._pending.lstrip()):
            return ""  # nothing yet, or a tag that may still be completed
        return self._release()

    def finish(self) -> str:
        """The visible text that was held back. A block that was never closed is thinking."""
        if self._inside:
            self.thinking[-1] += self._pending
            self._pending = ""
        return self._release()

    def _enter_block(self) -> bool:
        text = self._pending.lstrip()
        if not text.startswith(OPEN):
            return False
        self._inside = True
        self._pending = text[len(OPEN) :]
        self.thinking.append("")
        return True

    def _take_thought(self) -> bool:
        """Move text into the open block; whether the block was closed."""
        end = self._pending.find(CLOSE)
        if end >= 0:
            self.thinking[-1] += self._pending[:end]
            self._pending = self._pending[end + len(CLOSE) :]
            self._inside = False
            return True
        held = max(n for n in range(len(CLOSE)) if self._pending.endswith(CLOSE[:n]))
        self.thinking[-1] += self._pending[: len(self._pending) - held]
        self._pending = self._pending[len(self._pending) - held :]
        return False

    def _release(self) -> str:
        self._at_head = False
        text, self._pending = self._pending, ""
        return text.lstrip() if self.thinking else text
