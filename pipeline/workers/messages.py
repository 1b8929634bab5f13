"""What the trainer and its workers say to each other: fixed binary records in datagrams, never pickles.

One connected SOCK_SEQPACKET pair serves all workers: a datagram goes to exactly one of them, whole, without
a lock that a dying worker could keep.
"""

import struct
from typing import NamedTuple

_TASK = struct.Struct("<qqiiqiii")
_REPLY = struct.Struct("<B3xiqqq")
MAX_BYTES = 65536
DONE, BAD_SAMPLE, BAD_TRANSFORM, BROKEN, GIVEN_UP = range(1, 6)
"""What became of a task: filled; a sample that cannot be used; the user's function raised; the worker cannot work;
left, because the trainer has left its run."""
Bad = list[tuple[int, str]]
"""Samples that cannot be used, by number, and why in one line."""
_REASON, _REASONS_BYTES = 1000, 32_768  # of one, in characters, and of all in a reply


class Task(NamedTuple):
    """Fill `slot` with the samples whose numbers the trainer wrote into it; `samples` says how many."""

    run: int
    """Counts the loader's epochs, as they are begun: replies of an abandoned one are recognised."""
    batch: int
    slot: int
    samples: int
    epoch: int
    px: int
    hints: int = 0
    """Samples to announce to the storage first; their numbers are in the slot too."""
    way: int = 0
    """How, as `ahead.WAYS` has it."""

    def pack(self) -> bytes:
        return _TASK.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> "Task":
        return cls(*_TASK.unpack(data))


STOP = Task(0, 0, -1, 0, 0, 0)


class Reply(NamedTuple):
    kind: int
    slot: int
    run: int
    batch: int
    sample: int = -1
    """With an error: the sample it happened on; -1 where it was none in particular."""
    text: str = ""
    """The error in one line. With DONE: the bad samples left out or replaced, "NUMBER REASON" a line."""

    @classmethod
    def done(cls, slot: int, run: int, batch: int, bad: Bad) -> "Reply":
        """Where not all of `bad` fit, the last that does says how many others there are."""
        lines, left_bytes = list[str](), _REASONS_BYTES
        for number, (sample, reason) in enumerate(bad):
            line = f"{sample} {reason[:_REASON]}"
            left_bytes -= len(line.encode(errors="replace"))
            if left_bytes < 0:
                lines[-1] += f" (and {len(bad) - number:,} more of this batch)"
                break
            lines.append(line)
        return cls(DONE, slot, run, batch, text="\n".join(lines))

    @property
    def bad(self) -> Bad:
        """What `done` was given."""
        parts = [line.partition(" ") for line in self.text.split("\n") if line]
        return [(int(sample), reason) for sample, _, reason in parts]

    def pack(self) -> bytes:
        return (_REPLY.pack(*self[:-1]) + self.text.encode(errors="replace"))[:MAX_BYTES]

    @classmethod
    def unpack(cls, data: bytes) -> "Reply":
        return cls(*_REPLY.unpack_from(data), text=data[_REPLY.size :].decode(errors="replace"))
