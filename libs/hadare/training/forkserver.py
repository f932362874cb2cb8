"""The fork server: one thread that has imported torch and the workloads once, and forks a process for each fork.

Started by the node agent as ``python -m hadare.training.forkserver``. It runs no user code itself and never touches
CUDA. It adopts and reaps orphans, reports every exit at once, and takes all forks with it when its agent goes.
"""

from __future__ import annotations

import argparse
import array
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType

import torch

from hadare.model.errors import text_of
from hadare.training import forkchild, linux
from hadare.training.processes import Process, end_fork, marker_of, process_table, read_process
from hadare.training.protocol import (
    MAX_MESSAGE_BYTES,
    REQUESTS,
    Exited,
    Hello,
    ServerReport,
    Spawn,
    Spawned,
    decode,
    encode,
)

_FDS_PER_SPAWN = 2


class ForkServer:
    """The server's loop; ``control`` keeps message boundaries (SOCK_SEQPACKET) and carries file descriptors."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._forks: dict[int, Spawned] = {}
        self._wake_read, self._wake_write = socket.socketpair()
        self._ending = False

    def run(self, hello: Hello) -> None:
        """Serves until the agent hangs up or a SIGTERM comes; then ends every fork."""
        self._watch_signals()
        self._send(hello)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ, self._serve_request)
            selector.register(self._wake_read, selectors.EVENT_READ, self._reap)
            while not self._ending:
                for key, _ in selector.select():
                    key.data()
        self._end_all()

    def _end_all(self) -> None:
        for fork in self._forks.values():
            end_fork(fork.pid, fork.started, fork.process_id)
        for orphan in _children():  # of forks that had ended before
            end_fork(orphan.pid, orphan.started, marker_of(orphan.pid))

    def _watch_signals(self) -> None:
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's to handle

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._ending = True

    def _send(self, report: ServerReport) -> None:
        try:
            self._control.send(encode(report))
        except OSError:
            self._ending = True  # the agent is gone

    def _serve_request(self) -> None:
        try:
            body, fds, _flags, _address = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, _FDS_PER_SPAWN)
        except OSError:
            body, fds = b"", []
        if not body:
            self._ending = True
            return
        self._spawn(decode(body, REQUESTS), array.array("i", fds))

    def _spawn(self, request: Spawn, fds: Sequence[int]) -> None:
        line, output = fds
        for fd in fds:  # not for the programs that user code starts
            os.set_inheritable(fd, False)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_fork(request, server, line, output)
        os.close(line)
        os.close(output)
        process = read_process(pid)
        self._forks[pid] = Spawned(process_id=request.process_id, pid=pid, started=process.started if process else 0)
        self._send(self._forks[pid])

    def _become_fork(self, request: Spawn, server: int, line: int, output: int) -> None:
        try:
            linux.die_with_parent(signal.SIGKILL, server)
            signal.set_wakeup_fd(-1)
            for own in (self._control, self._wake_read, self._wake_write):
                own.close()
            forkchild.run(request, socket.socket(fileno=line), output)
        finally:
            os._exit(1)  # whatever happened: never back into the server's loop

    def _reap(self) -> None:
        try:
            while self._wake_read.recv(4096):
                pass
        except BlockingIOError:
            pass
        while (found := _next_dead()) is not None:
            pid, status = found
            if (fork := self._forks.pop(pid, None)) is not None:
                self._report_exit(fork, os.waitstatus_to_exitcode(status))
        self._end_strays()

    def _report_exit(self, fork: Spawned, code: int) -> None:
        self._send(
            Exited(process_id=fork.process_id, pid=fork.pid, code=max(0, code), signal=max(0, -code)),
        )

    def _end_strays(self) -> None:
        """Once no fork lives, an adopted orphan without a marker can only be what is left of one."""
        if self._forks:
            return
        for orphan in _children():
            if not marker_of(orphan.pid):
                end_fork(orphan.pid, orphan.started, "")


def _children() -> list[Process]:
    own = os.getpid()
    return [process for process in process_table().values() if process.parent == own]


def _next_dead() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def preload(modules: Sequence[str]) -> Hello:
    """Imports what forks will need, and says what could not be imported."""
    begun = time.monotonic()
    torch.set_num_threads(1)
    # The first optimiser of a process imports much of torch, a second's worth: do it once, here.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    importable, failed = [], {}
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a module that cannot be imported is not fatal
            failed[module] = f"{type(error).__name__}: {text_of(error)}"[:1000]
        else:
            importable.append(module)
    gc.collect()
    gc.freeze()  # so that collections in the forks do not copy what they share with the server
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - a count
    return Hello(
        pid=os.getpid(),
        importable=tuple(importable),
        failed=failed,
        seconds=time.monotonic() - begun,
        threads=threads,
    )


def main() -> None:
    """Entry point; the agent passes its end of the control socket as an inherited file descriptor."""
    parser = argparse.ArgumentParser(description="HadarE fork server, started by a node agent")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--preload", nargs="*", default=[])
    arguments = parser.parse_args()
    linux.die_with_parent(signal.SIGTERM, arguments.parent)
    linux.adopt_orphans()
    control = socket.socket(fileno=arguments.control_fd)
    ForkServer(control).run(preload(arguments.preload))
    sys.exit(0)


if __name__ == "__main__":
    main()
