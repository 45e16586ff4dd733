"""Reasoning that a model writes into its text, between `<think>` tags."""

OPEN, CLOSE = "<think>", "</think>"


class ThinkTags:
    """Takes `<think>` blocks out of text that arrives in pieces: `feed` gives visible text,
    `thinking` has the blocks.

    Open-weight models write their reasoning into the text, in tags, and a stream cuts the text
    anywhere, in the middle of a tag too. A block is recognised only at the head of the reply, where
    such models put it: a tag further on is something that the model is writing about, and stays
    text. The cuts make no difference to the result, and nothing but the tags and the space around
    blocks is dropped.
    """

    def __init__(self) -> None:
        self.thinking: list[str] = []
        # The meaning of this text depends on the next piece.
        self._held = ""
        self._at_head = True

    def feed(self, piece: str) -> str:
        """The visible text that is certain after this piece."""
        if not self._at_head:
            return piece
        self._held += piece
        text = self._held.lstrip()
        while text.startswith(OPEN) and CLOSE in text:
            thought, _, self._held = text.removeprefix(OPEN).partition(CLOSE)
            self.thinking.append(thought)
            text = self._held.lstrip()
        if text.startswith(OPEN) or OPEN.startswith(text):
            # Inside a block, or nothing yet, or a tag that may still be completed.
            return ""
        return self._release()

    def finish(self) -> str:
        """The visible text that was held back. A block that was never closed is thinking."""
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self.thinking.append(text.removeprefix(OPEN))
            self._held = ""
        return self._release()

    def _release(self) -> str:
        self._at_head = False
        text, self._held = self._held, ""
        return text.lstrip() if self.thinking else text
