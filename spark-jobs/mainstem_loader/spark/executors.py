"""Where tasks run: on Spark, or right here. Only this module knows Spark, and imports it when it is needed.

Tasks and results are values of which Spark knows nothing but their bytes; rows never pass through the JVM.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self, TypeVar

from mainstem_loader.errors import LoaderError, SparkUnavailableError, TransformError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Called with the number of tasks that have ended.
Ended = Callable[[int], None]

JAVA_VERSION_MIN: Final = 17
# On one machine Spark talks to itself only.
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
PROGRESS_PAUSE_S: Final = 0.2
CANCEL_SECONDS: Final = 30
"""How long cancelled jobs may take to end: the last of them may be writing a file."""
JVM_END_SECONDS: Final = 10
"""From the end of its connections to the end of the JVM, which may have a heap dump or hooks to do."""
EXECUTOR_TIMEOUT_S: Final = 300
"""A node that has to be made and an image that has to be pulled take minutes."""


class TaskExecutor(Protocol):
    """Runs tasks. A context manager, so that what it needs is there between enter and exit only."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def run(
        self, function: Callable[[Task, int], Result], tasks: Sequence[Task], on_ended: Ended
    ) -> list[Result]:
        """Run all tasks.

        Args:
            function: of the module level; called with a task and a number that no other try has.
            tasks: values.
            on_ended: told how many tasks have ended, now and then.

        Returns:
            The results, in the order of the tasks.
        """
        ...

    def run_frames(self, function: Callable[[Any], Result], deadline_s: float) -> Result:
        """Call a function with a session of Spark that nothing else uses.

        Args:
            function: called in a thread of its own.
            deadline_s: when its jobs are cancelled.

        Raises:
            TransformError: it took too long. It may go on, but no job of Spark does.
            SparkUnavailableError: there is no Spark, or it ended meanwhile.
        """
        ...


class InProcessExecutor:
    """Runs tasks one after the other in this process: for small loads and for tests."""

    def __init__(self) -> None:
        self._attempts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(
        self, function: Callable[[Task, int], Result], tasks: Sequence[Task], on_ended: Ended
    ) -> list[Result]:
        results: list[Result] = []
        for task in tasks:
            self._attempts += 1
            results.append(function(task, self._attempts))
            on_ended(len(results))
        return results

    def run_frames(
        self,
        function: Callable[[Any], Result],  # noqa: ARG002  # nothing here can call it
        deadline_s: float,  # noqa: ARG002
    ) -> Result:
        raise SparkUnavailableError("Transforms need Spark; run the load with Spark's executor.")


class SparkExecutor:
    """Runs tasks on Spark, as an RDD with a partition for each task.

    RDDs, because a first job of DataFrames takes seconds longer to start and no row needs one.

    Entering starts Spark and the outermost exit stops it, so `with SparkExecutor(...) as spark:` around
    several loads starts it once.

    Args:
        master: Spark's, such as `local[2]`.
        settings: more of Spark's settings.
        pod_template: of executors that are Kubernetes pods.
        executors: how many executors come from elsewhere; entering waits for the first of them.

    Raises:
        SparkUnavailableError: on entering.
    """

    def __init__(
        self,
        master: str,
        settings: Mapping[str, str] | None = None,
        pod_template: Mapping[str, Any] | None = None,
        executors: int = 0,
    ) -> None:
        self._master = master
        self._settings = dict(settings or {})
        self._pod_template = pod_template
        self._template_file: Path | None = None
        self._executors = executors
        self._context: Any = None
        self._entered = 0
        self._lock = threading.Lock()  # of `_entered`: loads of several threads may share an executor

    def __enter__(self) -> Self:
        with self._lock:
            if not self._entered:
                self._start()
            self._entered += 1
        return self

    def is_alive(self) -> bool:
        """Whether Spark still answers, between enter and exit."""
        try:
            return not self._context._jsc.sc().isStopped()  # noqa: SLF001  # no other way
        except Exception:  # noqa: BLE001  # py4j's errors have no common root
            return False

    @property
    def context(self) -> Any:
        """The SparkContext, between enter and exit: `SparkSession(executor.context)` is a session of it."""
        return self._context

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered:
                return
        is_interrupted = any(isinstance(part, KeyboardInterrupt) for part in exception)
        has_ended = is_interrupted or not self.is_alive()
        context, self._context = self._context, None
        try:
            if has_ended:
                # Stopping in good order waits for tasks whose results are not needed any more, or fails.
                _kill_jvm()
            else:
                type(context).stop(context)
        finally:
            if self._template_file is not None:
                self._template_file.unlink()
                self._template_file = None

    def _start(self) -> None:
        if self._pod_template is not None:
            # Spark wants a file. JSON is YAML.
            descriptor, name = tempfile.mkstemp(prefix="executor-", suffix=".yaml")
            with os.fdopen(descriptor, "w") as file:
                json.dump(self._pod_template, file)
            self._template_file = Path(name)
            self._settings["spark.kubernetes.executor.podTemplateFile"] = name
        try:
            from pyspark import SparkConf, SparkContext
        except ImportError as error:
            raise SparkUnavailableError(
                "PySpark is not installed; install Mainstem with its extra 'loader'."
            ) from error
        _check_java()
        settings = {
            "spark.app.name": "mainstem-loader",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            # A second attempt of a slow task would read everything twice.
            "spark.speculation": "false",
            **(_LOOPBACK if self._master.startswith("local") else {}),
            **self._settings,
        }
        configuration = SparkConf().setMaster(self._master).setAll(list(settings.items()))

        def start() -> Any:
            # With pandas installed, which no task needs, PySpark warns of its version.
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                return SparkContext(
                    conf=configuration,
                    environment={"PYTHONPATH": _python_path()},
                    gateway=_gateway(configuration),
                )

        try:
            self._context = _uninterrupted(start)
        except Exception as error:
            if "multiple SparkContexts" in str(error):
                raise SparkUnavailableError(
                    "Another Spark runs in this process, and there can be only one; stop it, then load again."
                ) from error
            reason = _last_words() if _started_gateway is None else _java_reason(str(error))
            raise SparkUnavailableError(
                f"Spark did not start ({reason}); check Java and the memory left, then load again."
            ) from error
        # Workers run this very interpreter, or they may lack what is installed for it.
        self._context.pythonExec = sys.executable
        if self._executors:
            _uninterrupted(self._await_executor)
        # Sessions stop by it, too.
        self._context.stop = _refuse_stop

    def _await_executor(self) -> None:
        """Without this, a job whose executors cannot start would wait for ever."""
        deadline = time.monotonic() + EXECUTOR_TIMEOUT_S
        driver = 1
        while self._context._jsc.sc().getExecutorMemoryStatus().size() <= driver:  # noqa: SLF001  # no other way
            if time.monotonic() > deadline:
                self._context.stop()
                self._context = None
                raise SparkUnavailableError(
                    f"None of {self._executors} executors came within {EXECUTOR_TIMEOUT_S} s; look at the"
                    " events of their pods (kubectl get events), or load with --executors 0."
                )
            time.sleep(PROGRESS_PAUSE_S)

    def run(
        self, function: Callable[[Task, int], Result], tasks: Sequence[Task], on_ended: Ended
    ) -> list[Result]:
        if not tasks:
            return []

        def run_one(task: Task) -> Result:
            from pyspark import TaskContext

            return function(task, TaskContext.get().taskAttemptId())

        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done, on_ended), daemon=True)
        watcher.start()
        try:
            job = self._context.parallelize(list(tasks), len(tasks)).map(run_one)
            pool = threading.current_thread().name

            def collect() -> list[Result]:
                # A pool for each thread that loads: Spark takes turns among pools, if it is set up to.
                self._context.setLocalProperty("spark.scheduler.pool", pool)
                collected: list[Result] = job.collect()
                return collected

            results: list[Result] = _uninterrupted(collect)
        except Exception as error:
            if not _is_of_spark(error):
                raise
            raise LoaderError(f"A task ended unexpectedly: {_cause(str(error))}") from error
        finally:
            done.set()
            watcher.join()
        on_ended(len(results))
        return results

    def run_frames(self, function: Callable[[Any], Result], deadline_s: float) -> Result:
        context = self._context
        group = f"mainstem-{secrets.token_hex(8)}"
        pool = threading.current_thread().name

        def run() -> Result:
            from pyspark.sql import SparkSession

            # Groups belong to threads, so cancelling this one leaves other jobs alone.
            context.setJobGroup(group, "transform", interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", pool)
            session: Any = SparkSession(context).newSession()
            # Spark looks up the data sources of writes in the session that is active in the thread.
            sessions = SparkSession._get_j_spark_session_class(session._jvm)  # noqa: SLF001  # no other way
            sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
            return function(session)

        outcome = _begun(run)
        if not _ends_within(outcome, deadline_s):

            def cancel() -> None:
                # Again and again: it may only now come to its first job, or to the next one.
                while not outcome.done():
                    context.cancelJobGroup(group)
                    wait([outcome], PROGRESS_PAUSE_S)

            _begun(cancel)
            _ends_within(outcome, CANCEL_SECONDS)
            raise TransformError(
                f"The transform did not end within {deadline_s:g} s, and nothing was loaded; correct it, or"
                " allow more time (deadline)."
            )
        try:
            return outcome.result()
        except Exception as error:
            if self.is_alive():
                raise
            raise SparkUnavailableError(_end_of_spark(_jvm_exit_status())) from error

    def _watch(self, done: threading.Event, on_ended: Ended) -> None:
        tracker = self._context.statusTracker()
        # When the JVM ends, so does the job, which reports it; there is no more progress to show.
        with suppress(Exception):
            while not done.wait(PROGRESS_PAUSE_S):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                on_ended(sum(stage.numCompletedTasks for stage in stages if stage is not None))


# The JVM that this process talks to, once there is one, and what it says on its error output: start-up
# chatter nobody should have to read, unless it does not start.
_started_gateway: Any = None
_jvm: subprocess.Popen[bytes] | None = None
_messages: IO[bytes] | None = None


def _gateway(configuration: Any) -> Any:
    """The JVM of this process, started when needed."""
    global _started_gateway, _messages
    if _started_gateway is None:
        from pyspark import java_gateway

        # The JVM starts Python processes that plan reads of data sources, and takes python3 unless this is
        # set.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        _messages = tempfile.TemporaryFile()  # noqa: SIM115  # open for as long as the JVM runs
        # PySpark tells the process id only when the JVM is up, too late for a Ctrl-C while it starts.
        java_gateway.Popen = _RecordedProcess
        try:
            # A process group of its own, so that Ctrl-C on a terminal does not reach it and its workers.
            _started_gateway = java_gateway.launch_gateway(
                configuration, popen_kwargs={"stderr": _messages, "process_group": 0}
            )
        finally:
            java_gateway.Popen = subprocess.Popen
    return _started_gateway


class _RecordedProcess(subprocess.Popen[bytes]):
    """The JVM's process, known to `_kill_jvm` as soon as it exists."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        global _jvm
        super().__init__(*arguments, **options)
        _jvm = self


def _uninterrupted(call: Callable[[], Result]) -> Result:
    """Call something that talks to the JVM in a thread, where no signal interrupts it.

    Ctrl-C interrupts only the wait for it. Inside of PySpark and py4j it would break a conversation with the
    JVM, leave processes behind, and turn into other errors.
    """
    outcome = _begun(call)
    _ends_within(outcome, None)
    return outcome.result()


def _begun(call: Callable[[], Result]) -> Future[Result]:
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised where the outcome is awaited
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def _ends_within(outcome: Future[Any], seconds: float | None) -> bool:
    try:
        return bool(wait([outcome], seconds).done)
    except KeyboardInterrupt:
        _kill_jvm()
        raise


def _kill_jvm() -> None:
    """End the JVM at once, and with it the Python workers, whose input it holds open."""
    global _jvm, _started_gateway
    process, _jvm, _started_gateway = _jvm, None, None
    # Calls that wait for the JVM fail now, in threads that nobody waits for, and py4j would log each: some by
    # its own logger, some by the root's.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    if process is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # PySpark keeps these for the next context, which needs a new JVM.
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001


def _jvm_exit_status() -> int | None:
    """None if the JVM runs."""
    with suppress(subprocess.TimeoutExpired):
        return None if _jvm is None else _jvm.wait(JVM_END_SECONDS)
    return None


def _end_of_spark(jvm_exit_status: int | None) -> str:
    """Why Spark is gone during a transform; None: its JVM runs."""
    match jvm_exit_status:
        case None:
            return "Spark was stopped while the transform ran, and nothing was loaded; load again."
        case 52 | 137 | -9:  # 52: `SparkExitCode.OOM`
            cause = "it ran out of memory, or was killed; use fewer cores or more memory, then load again"
        case status:
            cause = f"exit status {status}; its output says more, if the transform did not end it"
    return f"Spark's Java virtual machine ended while the transform ran, and nothing was loaded: {cause}."


def _refuse_stop() -> None:
    raise TransformError(
        "The transform calls stop() of Spark, which the load needs and stops; remove the call."
    )


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _last_words() -> str:
    if _messages is None:
        return "its virtual machine was not even tried"
    _messages.seek(0)
    lines = _messages.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it did not say why")


def _java_reason(message: str) -> str:
    """The line of a py4j error that says what went wrong in Java, or the first line of any other."""
    lines = message.splitlines() or ["it did not say why"]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])


def _python_path() -> str:
    """So that workers find this package also when it is not installed but run from its sources."""
    here = str(Path(__file__).parent.parent)
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise SparkUnavailableError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and there is no java {where}; install it, for"
            f" example the package openjdk-{JAVA_VERSION_MIN}-jre-headless, or set JAVA_HOME."
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([0-9]+)', answer)
    if version is not None and int(version.group(1)) < JAVA_VERSION_MIN:
        raise SparkUnavailableError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and {java} is {version.group(1)}; install a"
            " newer one and point JAVA_HOME to it."
        )


def _is_of_spark(error: Exception) -> bool:
    """Whether a job failed. Once this process has had a session, as transforms have, PySpark raises errors of
    its own where it raised those of the gateway before.
    """
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__name__ == "Py4JJavaError"


def _cause(message: str) -> str:
    """What went wrong in a task: the line of a Spark error that tells Python's, or else Java's."""
    if "Python worker exited unexpectedly" in message:
        return "its process was killed, perhaps for want of memory; use fewer cores, then load again."
    lines = [line.strip() for line in message.splitlines()]
    errors = (line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line))
    return next(errors, _java_reason(message))
