"""The Spark side of `prepare`: tasks out, outcomes back, and no process or file left behind.

Spark carries descriptors out and short outcomes back; pixels never enter the JVM. A task is one shard, or a few small
ones, pure Python on the executor (`preprocess.write_shard`). This is the only file that imports pyspark, and only
when a job
runs.
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
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.scratch import end_spark_of, scratch_folder
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.write_shard import Order, Outcome, ShardTask, settle, write_shards

JAVA_MIN = 17
TASK_ATTEMPTS = 4
POLL_S = 0.5
TASK_SHARDS, TASK_SAMPLES = 16, 4000
"""At most, where shards share a task. Each task costs some 20 ms of the JVM's time and of waiting for it, and only
within a task can a shard be published while the next is worked on; but news of shards comes task by task."""
TAIL = 2
"""The last tasks shrink to this part of what is left for each slot, so that all slots end together."""
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


class SparkFailed(FeedlineError):
    """Spark itself could not do the job."""


@dataclass(kw_only=True)
class Ran:
    """What came back from the tasks of one run."""

    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    start_s: float = 0.0
    """Starting Spark, which is no part of the work."""
    run_s: float = 0.0
    stop_s: float = 0.0
    parallelism: int = 1
    master: str = ""


def run_on_spark(
    config: PrepareConfig,
    order: Order,
    tasks: Sequence[ShardTask],
    on_outcomes: Callable[[list[Outcome]], None],
    on_tasks: Callable[[float], None],
) -> Ran:
    """Runs all tasks; leaves no Spark behind that was not there before.

    `on_outcomes` gets what arrived since the last call and may raise to end the job; `on_tasks` the share of tasks
    done. Raises FeedlineError for anything that keeps Spark from finishing.
    """
    ran = Ran()
    started = time.monotonic()
    with deaths_in_one_line(), spark_context(config) as context:
        warm_up(context)
        ran.start_s = time.monotonic() - started
        ran.parallelism, ran.master = context.defaultParallelism, context.master
        started = time.monotonic()
        job = Job(context, order, tasks)
        try:
            for share in job.watch():
                fresh = job.take()
                ran.outcomes += fresh
                on_outcomes(fresh)
                on_tasks(share)
        finally:
            job.cancel()
        ran.run_s = time.monotonic() - started
        started = time.monotonic()
    ran.stop_s = time.monotonic() - started
    return ran


@contextlib.contextmanager
def deaths_in_one_line() -> Generator[None]:
    """The JVM may die under any call to it, also before the job."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, ConnectionError, EOFError) as error:
        raise SparkFailed(one_line(error)) from error


def warm_up(context: Any) -> None:
    """Has local Python workers import what the tasks need, so that their start is not taken for work."""
    if context.master.startswith("local"):
        count = context.defaultParallelism
        context.parallelize(range(count), count).foreach(settled)


def settled(_: int) -> None:
    """Named, so that unpickling it imports this module, and with it all that a task needs."""
    settle()


def outcomes(order: Order, group: Sequence[ShardTask]) -> list[Outcome]:
    """What became of the group's shards, up to the first that cannot be mended."""
    settle()
    return write_shards(order, group)


def grouped(tasks: Sequence[ShardTask], slots: int) -> list[list[ShardTask]]:
    """The shards in order, small ones several to a group; the groups get smaller towards the end."""
    groups: list[list[ShardTask]] = []
    position = 0
    while position < len(tasks):
        most = min(TASK_SHARDS, (len(tasks) - position) // (TAIL * slots))
        samples = np.cumsum([len(task.keys) for task in tasks[position : position + most]])
        size = max(1, int(np.searchsorted(samples, TASK_SAMPLES, "right")))
        groups.append(list(tasks[position : position + size]))
        position += size
    return groups


class Job:
    """The Spark job in a thread of its own, and what is heard of it meanwhile."""

    def __init__(self, context: Any, order: Order, tasks: Sequence[ShardTask]) -> None:
        self._context = context
        self._arrived = context.accumulator([], outcome_list())
        self._taken = 0
        self._group = f"feedline-{order.run}"
        groups = grouped(tasks, context.defaultParallelism)
        self._tasks = len(groups)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(order, groups), name=self._group, daemon=True)
        self._thread.start()

    def _run(self, order: Order, groups: Sequence[Sequence[ShardTask]]) -> None:
        try:
            self._context.setJobGroup(self._group, f"feedline prepare, plan {order.plan_hash[:12]}", True)
            arrived = self._arrived
            rdd = self._context.parallelize(groups, len(groups))
            rdd.foreach(lambda group: arrived.add(outcomes(order, group)))
        except BaseException as error:
            self._error = error

    def watch(self) -> Iterator[float]:
        """Yields the share of tasks done, a few times a second, once more at the end. Raises SparkFailed."""
        while self._thread.is_alive():
            self._thread.join(POLL_S)
            yield self._share()
        if self._error is not None:
            raise SparkFailed(one_line(self._error)) from self._error
        yield 1.0

    def take(self) -> list[Outcome]:
        everything: list[Outcome] = self._arrived.value
        fresh = everything[self._taken :]
        self._taken = len(everything)
        return fresh

    def cancel(self) -> None:
        """Ends what still runs; nothing when it is done."""
        if self._thread.is_alive():
            with contextlib.suppress(Exception):  # the JVM may be gone already
                self._context.cancelJobGroup(self._group)
            self._thread.join(10)

    def _share(self) -> float:
        try:
            tracker = self._context.statusTracker()
            done = 0
            for job in tracker.getJobIdsForGroup(self._group):
                info = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else [])]
                done += sum(stage.numCompletedTasks for stage in stages if stage)
        except Exception:  # the JVM is gone: the job's own thread says why
            return 0.0
        return done / max(self._tasks, 1)


def outcome_list() -> Any:
    from pyspark.accumulators import AccumulatorParam

    class OutcomeList(AccumulatorParam[list[Outcome]]):
        """Spark adds a finished task's outcomes exactly once, whichever attempt won."""

        def zero(self, value: list[Outcome]) -> list[Outcome]:
            return []

        def addInPlace(self, value1: list[Outcome], value2: list[Outcome]) -> list[Outcome]:
            value1.extend(value2)
            return value1

    return OutcomeList()


PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


def one_line(error: BaseException) -> str:
    """What a Spark failure was about, without its traces."""
    text = str(getattr(error, "java_exception", None) or error)
    lost = "ExecutorLostFailure" in text or "Python worker exited unexpectedly" in text
    if lost:
        return "a Python worker or executor died again and again (killed, or out of memory?): run again to resume"
    if isinstance(error, ConnectionError | EOFError) or "Answer from Java side is empty" in text or not text.strip():
        return "Spark's JVM died (killed, or out of memory?): run the same command again to resume"
    found = PYTHON_ERROR.findall(text)
    first = (found[-1] if found and "Py4J" not in found[-1] else text.strip().splitlines()[0])[:300]
    return f"Spark could not finish ({first}): run the same command again to resume"


# --- the context --------------------------------------------------------------------------------------


@contextlib.contextmanager
def spark_context(config: PrepareConfig) -> Generator[Any]:
    """The caller's own SparkContext when there is one (left running), else a new one that leaves no trace."""
    if has_context():
        from pyspark import SparkContext

        yield SparkContext._active_spark_context
        return
    with scratch_folder("spark") as scratch, quiet_py4j():
        master = config.master or (None if under_submit() else "local[*]")
        conf = settings(master, scratch, config.spark)
        context = None
        try:
            with environment(master), output_to(scratch / "jvm.log"), temporary_files_in(scratch), own_interrupts():
                context = start(conf, scratch)
            quiet_accumulators(context)
            yield context
        finally:
            stop(context, keep_jvm=under_submit())
            end_spark_of(scratch)  # whatever kept it from ending as it should


def under_submit() -> bool:
    """Whether spark-submit started us: then there is a JVM, and master and settings are the user's."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def has_context() -> bool:
    """Whether the caller has a SparkContext already."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def master_of(config: PrepareConfig) -> str:
    """The master that the job will run on; of spark-submit's, what its JVM says."""
    if has_context():
        from pyspark import SparkContext

        return str(getattr(SparkContext._active_spark_context, "master", ""))
    said = config.spark.get("spark.master") or config.master
    if said is None and under_submit():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return str(SparkConf().get("spark.master", ""))
    return said or "local[*]"


def start(conf: Mapping[str, str], scratch: Path) -> Any:
    """The JVM is started by another thread, which no signal interrupts: whenever one comes, the JVM can be ended."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    said = SparkConf().setAll(list(conf.items()))
    gateway = ThreadPoolExecutor(1, "feedline-jvm").submit(launch_gateway, said)
    try:
        return SparkContext(conf=said, environment={**ONE_THREAD}, gateway=gateway.result())
    except Exception as error:
        reason = str(getattr(error, "java_exception", None) or error).strip().splitlines()
        raise SparkFailed(f"Spark did not start with master {conf.get('spark.master', 'of spark-submit')} "
                          f"({reason[0][:300] if reason else type(error).__name__})") from error  # fmt: skip
    finally:
        while not gateway.done():
            end_spark_of(scratch)
            time.sleep(POLL_S / 10)
        if gateway.exception() is None:
            SparkContext._gateway = gateway.result()  # so that it is ended also where pyspark has not taken it yet


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


def quiet_accumulators(context: Any) -> None:
    """The thread that hears of finished tasks prints a trace when the JVM dies under it; we say that in one line."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, client_address: None


def stop(context: Any, *, keep_jvm: bool) -> None:
    """None: of a start that failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a JVM that was killed cannot be stopped cleanly
        with contextlib.suppress(Exception):
            context.stop()
    if not keep_jvm:
        end_jvm()


def end_jvm() -> None:
    """Ends the JVM that pyspark started for us and forgets it, so that the next job may start its own."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    if gateway is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
