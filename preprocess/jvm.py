"""Spark's JVM as a guest of this process: the Java it needs, its settings, and what is put back after its start.

pyspark itself is imported only by `preprocess.spark`.
"""

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping
from pathlib import Path

from feedline.pipeline.base.errors import FeedlineError

JAVA_MIN = 17
TASK_ATTEMPTS = 4
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
LIGHT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""In local mode the JVM only hands out tasks: compiling it well, on several threads, takes cores from the work."""
QUIET_LOG = """\
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""


def check_java() -> None:
    """Raises FeedlineError when there is no Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    remedy = f"Spark needs Java {JAVA_MIN} or later (Debian/Ubuntu: apt-get install openjdk-{JAVA_MIN}-jre-headless)"
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the path"
        raise FeedlineError(f"no java {where}: {remedy}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FeedlineError(f"{java} does not run ({error}): {remedy}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found.group(1)) < JAVA_MIN:
        raise FeedlineError(f"{java} is version {found.group(1) if found else 'unknown'}: {remedy}")


def under_submit() -> bool:
    """Whether spark-submit started us: then there is a JVM, and master and settings are the user's."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


# --- settings ------------------------------------------------------------------------------------------


def settings(master: str | None, scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """What the job needs of Spark; anything in `extra` wins."""
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(QUIET_LOG.format(log=scratch / "spark.log"))
    java = f"-Dlog4j2.configurationFile=file:{log_settings} -Djava.io.tmpdir={scratch} -XX:-UsePerfData"
    conf = {"spark.app.name": "feedline prepare", "spark.ui.showConsoleProgress": "false"}
    for name, value in ONE_THREAD.items():
        conf[f"spark.executorEnv.{name}"] = value
    if not under_submit():  # there, these are the user's
        conf |= {
            "spark.ui.enabled": "false",
            "spark.task.maxFailures": str(TASK_ATTEMPTS),
            "spark.driver.extraJavaOptions": f"{java} {LIGHT_JVM}" if is_local(master) else java,
        }
    if master is not None:
        conf["spark.master"] = with_retries(master)
        if is_local(master):
            conf |= {
                "spark.local.dir": str(scratch),
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }
    return conf | dict(extra)


def is_local(master: str | None) -> bool:
    return master is not None and re.fullmatch(r"local(\[.*\])?", master) is not None


def with_retries(master: str) -> str:
    """`local[N]` ends the job when one task fails (a killed Python worker, say); `local[N,F]` tries again."""
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{found.group(1) or 1},{TASK_ATTEMPTS}]" if found else master


# --- what is changed while it starts, and put back -----------------------------------------------------


@contextlib.contextmanager
def environment(master: str | None) -> Generator[None]:
    """The variables pyspark reads while it starts; the caller's own choices win, and all are put back."""
    wanted = {"PYSPARK_PYTHON": sys.executable} if "PYSPARK_PYTHON" not in os.environ else {}
    if is_local(master):
        wanted |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def output_to(log: Path) -> Generator[None]:
    """Processes started meanwhile write there: the JVM greets with warnings that no setting silences."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in (*saved, target):
            os.close(descriptor)


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Generator[None]:
    """pyspark makes a folder while it starts; should we be killed then, it goes with ours."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def own_interrupts() -> Generator[None]:
    """Ctrl-C stays what it was: pyspark's handler would stay for good, and calls the JVM even amid another call."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def quiet_py4j() -> Generator[None]:
    """py4j logs whole traces when its JVM dies, some of them as if they were the user's; we say it in one line."""
    loggers = [logging.getLogger(name) for name in ("py4j", "pyspark")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addFilter(not_of_py4j)
    root.addHandler(silent)  # without any, the first message would install one for good
    try:
        yield
    finally:
        root.removeHandler(silent)
        root.removeFilter(not_of_py4j)
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname
