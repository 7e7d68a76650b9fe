"""Workers at the other ends of connections: pipes of this machine, or sockets."""

from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from rhobust.executors.hand_out import Event


class Connected:
    """Sends blocks through connections and reads what comes back; one that dies is not started again."""

    def __init__(self, connections: Iterable[Connection] = ()) -> None:
        self.connections = list(connections)
        self.ready: set[Any] = set()

    def send(self, worker: Any, number: int, block: Any) -> None:
        """Give a block to a worker, or, as number -1, a task."""
        with suppress(OSError):  # it is dead, which `events` says
            worker.send((number, block))

    def events(self) -> list[Event]:
        """What the workers said since the last call; waits for at least one."""
        found = []
        for connection in wait(self.connections):
            try:
                number, rows = connection.recv()  # type: ignore[union-attr]
            except (EOFError, OSError):
                self.connections.remove(connection)  # type: ignore[arg-type]
                self.lost(connection)
                self.ready.discard(connection)
                found.append(Event("lost", connection))
                continue
            if number < 0 and isinstance(rows, Exception):
                raise rows
            if number < 0:
                self.ready.add(connection)
            found.append(Event("done" if number >= 0 else "ready", connection, number, rows or []))
        return found

    def lost(self, connection: Any) -> None:
        """A worker is dead."""
        connection.close()
