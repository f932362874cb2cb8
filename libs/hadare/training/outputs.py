"""What a fork prints, cut into lines, bounded in length and rate: an endless print costs its own fork's log only."""

from __future__ import annotations

MAX_LINE_BYTES = 4096
MAX_BYTES_PER_WINDOW = 2**17
WINDOW_S = 1.0


class LineCutter:
    """Bytes in, lines out. What exceeds the rate is counted and left out, and a line says so."""

    def __init__(self, *, max_line: int = MAX_LINE_BYTES, max_window: int = MAX_BYTES_PER_WINDOW) -> None:
        self._max_line = max_line
        self._max_window = max_window
        self._rest = b""
        self._window_begun = float("-inf")
        self._window_used = 0
        self._dropped = 0

    def feed(self, data: bytes, now: float) -> list[str]:
        """Complete lines of what came in at ``now`` (monotonic seconds)."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > self._max_line:
            lines.append(self._rest[: self._max_line])
            self._rest = self._rest[self._max_line :]
        return [text for line in lines for text in self._admit(line, now)]

    def end(self) -> list[str]:
        """What is left when the stream ends."""
        rest, self._rest = self._rest, b""
        return self._notice() + ([_text(rest)] if rest else [])

    def _admit(self, line: bytes, now: float) -> list[str]:
        said = []
        if now - self._window_begun >= WINDOW_S:
            said = self._notice()
            self._window_begun, self._window_used = now, 0
        pieces = [line[a : a + self._max_line] for a in range(0, len(line), self._max_line)] or [b""]
        for piece in pieces:
            if self._window_used + len(piece) + 1 > self._max_window:
                self._dropped += len(piece) + 1
                continue
            self._window_used += len(piece) + 1
            said.append(_text(piece))
        return said

    def _notice(self) -> list[str]:
        dropped, self._dropped = self._dropped, 0
        return [f"… {dropped} bytes of output left out: too much at once"] if dropped else []


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
