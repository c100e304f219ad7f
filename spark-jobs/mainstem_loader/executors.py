"""Where tasks run: on Spark, or right here. Only this module knows Spark, and imports it when it is needed.

Tasks and results are values of which Spark knows nothing but their bytes; rows never pass through the JVM.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self, TypeVar

from mainstem_loader.errors import LoaderError, SparkUnavailableError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Called with the number of tasks that have ended.
Ended = Callable[[int], None]

JAVA_VERSION_MIN: Final = 17
# On one machine Spark talks to itself only.
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
PROGRESS_PAUSE_S: Final = 0.2
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

    def __enter__(self) -> Self:
        if not self._entered:
            self._start()
        self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
            self._context.stop()
            self._context = None
            if self._template_file is not None:
                self._template_file.unlink()

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
            # No task is slow for want of a second try of itself, which would read everything twice.
            "spark.speculation": "false",
            **(_LOOPBACK if self._master.startswith("local") else {}),
            **self._settings,
        }
        configuration = SparkConf().setMaster(self._master).setAll(list(settings.items()))
        try:
            # With pandas installed, which no task needs, PySpark warns of its version.
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                self._context = SparkContext(
                    conf=configuration,
                    environment={"PYTHONPATH": _python_path()},
                    gateway=_gateway(configuration),
                )
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
            self._await_executor()

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
            results: list[Result] = self._context.parallelize(list(tasks), len(tasks)).map(run_one).collect()
        except Exception as error:
            if type(error).__name__ != "Py4JJavaError":
                raise
            raise LoaderError(f"A task ended unexpectedly: {_cause(str(error))}") from error
        finally:
            done.set()
            watcher.join()
        on_ended(len(results))
        return results

    def _watch(self, done: threading.Event, on_ended: Ended) -> None:
        tracker = self._context.statusTracker()
        while not done.wait(PROGRESS_PAUSE_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            on_ended(sum(stage.numCompletedTasks for stage in stages if stage is not None))


# The JVM that this process talks to, once there is one, and what it says on its error output: start-up
# chatter nobody should have to read, unless it does not start.
_started_gateway: Any = None
_messages: IO[bytes] | None = None


def _gateway(configuration: Any) -> Any:
    global _started_gateway, _messages
    if _started_gateway is None:
        from pyspark.java_gateway import launch_gateway

        _messages = tempfile.TemporaryFile()  # noqa: SIM115  # open for as long as the JVM runs
        _started_gateway = launch_gateway(configuration, popen_kwargs={"stderr": _messages})
    return _started_gateway


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
    version = re.search(r'version "(\d+)', answer)
    if version is not None and int(version.group(1)) < JAVA_VERSION_MIN:
        raise SparkUnavailableError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and {java} is {version.group(1)}; install a"
            " newer one and point JAVA_HOME to it."
        )


def _cause(message: str) -> str:
    """What went wrong in a task: the line of a Spark error that tells Python's, or else Java's."""
    if "Python worker exited unexpectedly" in message:
        return "its process was killed, perhaps for want of memory; use fewer cores, then load again."
    lines = [line.strip() for line in message.splitlines()]
    errors = (line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line))
    return next(errors, _java_reason(message))
