"""Run in the process of a trial: waits for orders, runs one trial after the other, reports how each ended.

Entered from the fork server after a fork (`become`), or as a new interpreter (`main`).
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from _signal import getsignal  # type: ignore[import-not-found]  # without Enums
from _signal import signal as set_handler
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from muster.base.clock import Clock, SystemClock
from muster.base.framing import FrameKind, FrameReader, frame, pack, unpack
from muster.base.untrusted import message_text
from muster.engines.worker.channel import WorkerChannel
from muster.engines.worker.child_reports import ChildReports, path_in, sockets_of
from muster.engines.worker.exit_report import CodeUnreadable, failed_exit
from muster.engines.worker.output import Output, flush
from muster.engines.worker.protocol import ExitReport, StartOrder, open_config, read_order
from muster.engines.worker.run_trainable import ClassRun, require_checkpoint, run_function
from muster.engines.worker.session import TrialSession
from muster.engines.worker.trainable_cache import TrainableCache
from muster.host import machine
from muster.host.die_with_parent import adopt_orphans, die_with_parent, has_children
from muster.session.progress import Signature
from muster.session.report import OUTER_RANKS, REPORT_TO, note_trial_process, outer_ranks
from muster.session.session import TrialStopped, install, uninstall
from muster.session.usage import wants_usage

if TYPE_CHECKING:
    from muster.engines.worker.session import CheckpointTransfer


_WATCHED = tuple(
    int(number)
    for number in signal.valid_signals()
    if number not in (getattr(signal, "SIGKILL", None), getattr(signal, "SIGSTOP", None))
)


_STDLIB = os.path.dirname(os.__file__) + os.path.sep
_FEW_IMPORTS = 20  # take some milliseconds: not worth a preload


class ForkOrigin:
    """State of the process that a worker was forked from, to find out what its trial imported."""

    def __init__(self, why_not_fork: Callable[[], str]) -> None:
        self._why_not_fork = why_not_fork
        self._count, self._path = len(sys.modules), list(sys.path)
        self._variables = dict(_variables())

    def new_imports(self, own: Mapping[str, str]) -> bytes:
        """Return the installed modules imported since and changed variables except `own`; b"" if few."""
        if len(sys.modules) < self._count + _FEW_IMPORTS or sys.path != self._path:
            return b""
        modules = [*sys.modules.items()][self._count :]
        names = []
        for name, module in modules:
            origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
            if origin.startswith(_STDLIB) or "/site-packages/" in origin or "/dist-packages/" in origin:
                names.append(name)
        return pack((names, self._changed(own)))

    def _changed(self, own: Mapping[str, str]) -> dict[bytes, bytes | None]:
        now, skip = _variables(), {os.fsencode(name) for name in (*own, REPORT_TO, OUTER_RANKS)}
        names = [name for name in {**self._variables, **now} if name not in skip]
        return {name: now.get(name) for name in names if now.get(name) != self._variables.get(name)}

    def can_import(self, names: Sequence[str], variables: Mapping[bytes, bytes | None]) -> bool:
        """Import that; returns whether the fork server may do so too, that is, whether forks remain safe.

        Nor may the trial have changed the environment before, unless the imports themselves do.
        """
        import_all(names)
        is_safe = not self._why_not_fork() and self._changed({}) == variables
        self.__init__(self._why_not_fork)  # type: ignore[misc]  # it continues from here
        return is_safe


def import_all(names: Sequence[str]) -> None:
    """Import what can be imported; a trial that needs the rest reports it."""
    for name in names:
        try:
            __import__(name)
        except BaseException:  # noqa: BLE001 - any code may run
            continue


class ProcessReset:
    """Remembers the state of this process, and restores it after a trial."""

    def __init__(self, own_threads: int) -> None:
        self._environment = dict(machine.environment())
        self._variables = dict(_variables())
        self._handlers = [(number, getsignal(number)) for number in _WATCHED]
        self._threads = threading.active_count() - own_threads

    def restore(self) -> None:
        """Undo what the last trial changed."""
        if _variables() != self._variables:
            environment = machine.environment()
            for name in environment.keys() - self._environment.keys():
                del environment[name]
            environment.update(self._environment)
        for number, handler in self._handlers:
            if getsignal(number) is not handler and handler is not None:  # None: not set by Python
                set_handler(number, handler)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def left_running(self, own_threads: int) -> bool:
        """Return whether the last trial left threads or processes."""
        return threading.active_count() > self._threads + own_threads or has_children()


def return_to(home: str) -> None:
    """Change back to the directory where the process started; to the root when that was deleted."""
    try:
        os.chdir(home)
    except OSError:
        os.chdir(os.path.sep)


def _variables() -> Mapping[Any, Any]:
    """Return the environment as it is stored, which compares a hundred times faster than when decoded."""
    variables = machine.environment()
    return getattr(variables, "_data", variables)


Address = tuple[str, str]  # hostname, node_ip


class Worker:
    """Serves trials until it is ordered to quit, or one of them fails.

    The fork server makes it before it forks: a child then only connects its channel.
    """

    def __init__(
        self,
        channel: WorkerChannel,
        trainables: TrainableCache,
        clock: Clock,
        address: Address,
        transfer: CheckpointTransfer | None = None,
    ) -> None:
        self.channel = channel
        self.trainables = trainables
        self._clock = clock
        self._address = address
        self._transfer = transfer
        self._output = Output()
        self._began_at = 0.0  # when it got the order of its trial
        self._instance: ClassRun | None = None
        self._latest: TrialSession | None = None  # of the trial that runs, or ran last
        self._reset: ProcessReset | None = None  # only in processes that may serve another trial
        self.origin: ForkOrigin | None = None  # only in forks
        variables = machine.environment()
        variables.update(outer_ranks(variables))
        self._sockets = sockets_of(variables)
        self._start_dir = machine.working_directory()
        self._works_in_trial_dir = machine.environment().get("RAY_CHDIR_TO_TRIAL_DIR", "1") != "0"

    def serve(self) -> None:
        """Handle frames until there is nothing more to do."""
        self._location = (os.getpid(), *self._address)
        note_trial_process()
        path = path_in(self._sockets)
        machine.environment()[REPORT_TO] = path
        self._reports = ChildReports(path)
        while True:
            kind, payload = self.channel.receive()
            if kind == FrameKind.TRAINABLE:
                self.trainables.put(*unpack(payload))
            elif kind == FrameKind.QUIT:
                break
            elif kind == FrameKind.PRELOAD and self.origin is not None:
                is_safe = self.origin.can_import(*unpack(payload))
                self.channel.send(frame(FrameKind.IMPORTED, payload if is_safe else b""))
            elif kind == FrameKind.START:
                self._began_at = self._clock.monotonic()
                try:
                    order = read_order(payload)
                    report = self._trial(order)
                finally:
                    if self._transfer is not None:
                        self._transfer.finish()
                if not report.stays:
                    self._clean_up()
                    report = report._replace(leaves_none=not has_children())
                    imports = b"" if self.origin is None else self.origin.new_imports(order.env)
                    if imports and report.kind is None:
                        self.channel.send(frame(FrameKind.IMPORTED, imports))
                report = report._replace(took_s=self._clock.monotonic() - self._began_at)
                self.channel.send(frame(FrameKind.EXITED, pack(tuple(report))))
                if not report.stays:
                    return
            # Any other frame was meant for a trial that has ended meanwhile.
        self._clean_up()

    def _trial(self, order: StartOrder) -> ExitReport:
        session: TrialSession | None = None
        try:
            if order.stays_when_done and self._reset is None:
                self._reset = ProcessReset(self._own_threads())
            if self._transfer is not None:
                order = self._transfer.prepare(order)
            self._enter_trial_dir(order)
            session = self._latest = TrialSession(order, self.channel, self._clock, self._transfer)
            token = install(session, whole_process=True)
            try:
                self._run(order, session)
                session.flush()
            except TrialStopped:
                raise
            except BaseException as error:
                if session.stopped:  # what the trial's code makes of a stop is not its failure
                    raise TrialStopped from error
                session.flush()  # what it reported before it failed
                raise
            finally:
                session.end()
                uninstall(token)
                self._output.restore()
                return_to(self._start_dir)
        except TrialStopped:
            stays = session is not None and session.stays_when_stopped
            return ExitReport(is_done=False, stays=stays and self._is_as_before())
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                return failed_exit(leaving)
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is this trial's outcome
            whole = machine.environment().get("RAY_AIR_FULL_TRACEBACKS") == "1"
            return failed_exit(error, whole_message=whole)
        return ExitReport(is_done=True, stays=order.stays_when_done and self._is_as_before())

    def _is_as_before(self) -> bool:
        """Return whether another trial may use this process; an instance may have threads, by intent."""
        if self._reset is None:
            return False
        self._reset.restore()
        return self._instance is not None or not self._reset.left_running(self._own_threads())

    def _own_threads(self) -> int:
        transfer_threads = 0 if self._transfer is None else self._transfer.own_threads()
        return int(self.channel.is_watched) + self._reports.own_threads + transfer_threads

    def _run(self, order: StartOrder, session: TrialSession) -> None:
        try:
            trainable, config = self.trainables.get(order.trainable_name), open_config(order)
        except Exception as error:
            raise CodeUnreadable(message_text(error)) from error
        if order.checkpoint_path:
            require_checkpoint(order.checkpoint_path)
        if wants_usage(config):
            session.watch_usage()
        if isinstance(trainable, type):
            if self._instance is None:
                self._instance = ClassRun(trainable, config)
            else:
                self._instance.reset(config)
            run = self._instance
            if order.checkpoint_path:
                run.load(order.checkpoint_path)
            self._send_started(is_function=False)
            made = Signature(trial_id=order.trial_id, config=config, from_function=False)
            made.pid, made.hostname, made.node_ip = self._location
            run.train(session, order.trial_dir, made)
        else:
            self._send_started(is_function=True)
            self._reports.serve(session)
            try:
                run_function(trainable, config, session)
            finally:
                self._reports.serve(None)

    def _send_started(self, *, is_function: bool) -> None:
        took_s = self._clock.monotonic() - self._began_at
        self.channel.send(frame(FrameKind.STARTED, pack((*self._location, is_function, took_s))))

    def _enter_trial_dir(self, order: StartOrder) -> None:
        if order.env:
            machine.environment().update(order.env)
        try:
            os.mkdir(order.trial_dir)  # the usual case, and a third of the price
        except OSError:
            os.makedirs(order.trial_dir, exist_ok=True)
        self._output.begin(order.trial_name, order.trial_dir, order.log_to_file)
        if self._works_in_trial_dir:
            os.chdir(order.trial_dir)

    def _clean_up(self) -> None:
        """Call the instance's `cleanup`, which may ask of which trial it is: the last one."""
        if self._instance is None or self._latest is None:
            return
        token = install(self._latest, whole_process=True)
        try:
            self._instance.cleanup()
        except Exception:  # noqa: BLE001 - user code; the trial's outcome stands already
            traceback.print_exc()
        finally:
            uninstall(token)


def become(worker: Worker) -> NoReturn:
    """Serve as a worker in this process, and ends it."""
    code = 0
    try:
        worker.serve()
    except TrialStopped:
        pass
    except BaseException:  # noqa: BLE001 - the last place that can print anything
        traceback.print_exc()
        code = 70
    leave(code)


def stop_on_sigterm() -> None:
    """Make SIGTERM raise TrialStopped from now on, in forks too."""
    signal.signal(signal.SIGTERM, _raise_stopped)


def _raise_stopped(number: int, where: FrameType | None) -> None:
    raise TrialStopped


# The list of handlers of `logging`: the first one is always there, and writes to stderr.
_log_handlers: list[Any] = []


def note_log_handlers(handlers: Any) -> None:  # noqa: ANN401 - private to `logging`
    """Keep an exit function from shutting `logging` down, in this process and its forks."""
    atexit.unregister(sys.modules["logging"].shutdown)
    _log_handlers[:] = [handlers]


def run_exit_functions() -> None:
    """Run exit functions as the interpreter does; `logging` flushes its handlers last, if there are any."""
    atexit._run_exitfuncs()
    if _log_handlers and len(_log_handlers[0]) > 1:
        sys.modules["logging"].shutdown()


def leave(code: int) -> NoReturn:
    """End the process as an interpreter would, without waiting for threads that user code left behind."""
    try:
        run_exit_functions()
    finally:
        flush()
        os._exit(code)


def main() -> NoReturn:
    """Serve as a worker in a new interpreter: `sys.argv` is path, pipes, trainables, heartbeat, parent."""
    read_fd, write_fd, trainables_fd = (int(text) for text in sys.argv[2:5])
    beat_s, parent_pid = float(sys.argv[5]), int(sys.argv[6])
    die_with_parent(parent_pid)
    adopt_orphans()  # as in a fork
    trainables = TrainableCache()
    address = ("", "")
    # All of a file without moving its position, which other processes share.
    data = os.pread(trainables_fd, os.fstat(trainables_fd).st_size, 0)
    os.close(trainables_fd)
    for kind, payload in FrameReader().feed(data):
        if kind == FrameKind.INIT:
            sys.argv[:], address = unpack(payload)
        else:
            trainables.put(*unpack(payload))
    for fd in (read_fd, write_fd):
        os.set_inheritable(fd, False)  # what the trial starts must not hold them open
    channel = WorkerChannel(beat_s=beat_s)
    channel.connect(read_fd, write_fd, parent_pid)
    channel.watch()
    trainables.load_all()
    machine.note_working_directory()
    stop_on_sigterm()
    become(Worker(channel, trainables, SystemClock(), address))
