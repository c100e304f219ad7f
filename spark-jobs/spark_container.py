"""First process of the Spark image: becomes an executor, a load (the driver), the resident loader, or the
command it is given.

Spark on Kubernetes starts executor pods with the argument `executor` and says the rest in the environment;
its Python package brings no program for that. `load TOPIC ...` is `python3 -m mainstem_loader TOPIC ...`, and
`resident FILE ...` is `python3 -m mainstem_loader.resident FILE ...`.
Only the standard library, since nothing else is needed.
"""

from __future__ import annotations

import os
import re
import sys

EXECUTOR_CLASS = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# Argument of the executor's command line: the variable in which the driver says it
# (Spark's BasicExecutorFeatureStep).
EXECUTOR_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_([0-9]+)")


def executor_command(environment: dict[str, str]) -> list[str]:
    """The Java command line of the executor that the environment describes.

    Raises:
        KeyError: a variable that Spark sets is not there.
    """
    numbered = sorted(
        (int(java_option[1]), value)
        for name, value in environment.items()
        if (java_option := _JAVA_OPTION.fullmatch(name))
    )
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    command = [
        "java",
        *(value for _, value in numbered),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-XX:-UsePerfData",
    ]
    command += ["-cp", environment["SPARK_HOME"] + "/jars/*", EXECUTOR_CLASS]
    for argument, variable in EXECUTOR_ARGUMENTS.items():
        command += [argument, environment[variable]]
    return command


def command_of(arguments: list[str], environment: dict[str, str]) -> list[str]:
    """The command line that the container's arguments stand for.

    Raises:
        KeyError: an executor's variable that Spark sets is not there.
    """
    if arguments[0] == "executor":
        return executor_command(environment)
    if arguments[0] == "resident":
        return [sys.executable, "-m", "mainstem_loader.resident", *arguments[1:]]
    if arguments[0] == "load":
        return [sys.executable, "-m", "mainstem_loader", *arguments[1:]]
    return arguments


def main(arguments: list[str]) -> str:
    """Become the program that `arguments` ask for. Returns only what is wrong with them."""
    if not arguments:
        return (
            "Say what to run: load TOPIC with its options (see load --help), resident FILE, executor, or a"
            " command."
        )
    try:
        command = command_of(arguments, dict(os.environ))
        os.execvp(command[0], command)
    except KeyError as missing:
        return f"An executor needs {missing.args[0]}, which Spark's driver sets: start executors by a driver."
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
