"""Spark as an engine of `prepare`: groups of tasks out, outcomes back, and no process or file left behind.

Spark carries descriptors out and short outcomes back; pixels never enter the JVM. This is the only file that imports
pyspark, and only when a job runs. Spark's JVM is a guest of this process: what its start needs of it is put back.
"""

import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from feedline.pipeline.base.errors import FeedlineError, first_line
from feedline.pipeline.base.process import ONE_THREAD, wait_or_kill
from feedline.pipeline.base.scratch import scratch_folder
from feedline.preprocess.engine import Engine, EngineRun
from feedline.preprocess.java import REMEDY, java
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.write_shard import OnOutcome, Order, Outcome, settle, write_shards

POLL_S = 0.5
TASK_SHARDS, TASK_SAMPLES = 16, 4000
"""At most, where shards share a Spark task. Each task costs Spark 20 ms to hand out and to hear of, and only within
one can a shard be published while the next is worked on; but news comes task by task."""
TAIL = 2
"""The last tasks shrink to this part of what is left for each slot, so that all slots end together."""
TASK_ATTEMPTS = 4
LIGHT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""In local mode the JVM only hands out tasks: compiling it well, on several threads, takes cores from the work."""
PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)


class SparkFailed(FeedlineError):
    """Spark itself could not do the job."""


@dataclass(frozen=True, kw_only=True)
class SparkEngine(Engine):
    """Tasks on Spark: on the caller's own SparkContext when there is one, else on one that leaves no trace."""

    master: str | None = None
    """None means that of spark-submit, else local[*]."""
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    """More Spark settings, as for `spark-submit --conf`."""

    def lacks(self) -> tuple[str, str]:
        """What keeps Spark from running here, "" for nothing, and the remedy. Under spark-submit, or with a context,
        nothing does."""
        if under_submit() or callers_context() is not None:
            return "", ""
        if find_spec("pyspark") is None:
            return "pyspark is not installed", "pip install 'feedline[prepare]'"
        _, trouble = java()
        return trouble.removesuffix(f": {REMEDY}"), REMEDY

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        from py4j.protocol import Py4JError

        times = [time.monotonic()]
        try:
            with spark_context(self.master, self.conf) as context:
                parallelism, master = context.defaultParallelism, context.master
                if master.startswith("local"):  # so that the start of its Python workers is not taken for work
                    context.parallelize(range(parallelism), parallelism).foreach(settled)
                times.append(time.monotonic())
                run_groups(context, order, grouped(tasks, parallelism), on_outcome)
                times.append(time.monotonic())
        except (Py4JError, ConnectionError, EOFError) as error:  # the JVM may die under any call to it
            before = error.__context__  # after a Ctrl-C amid a call, what pyspark then tidies up in the JVM fails
            while before is not None and not isinstance(before, KeyboardInterrupt | SystemExit):
                before = before.__context__
            if before is not None:
                raise before from None
            raise SparkFailed(one_line(error)) from error
        start_s, run_s, stop_s = (later - sooner for sooner, later in pairwise([*times, time.monotonic()]))
        return EngineRun(start_s=start_s, run_s=run_s, stop_s=stop_s, parallelism=parallelism, master=master)


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


def settled(_: int) -> None:
    """Named, so that unpickling it imports this module, and with it all that a task needs."""
    settle()


def write_group(order: Order, group: Sequence[ShardTask]) -> list[Outcome]:
    """The work of one group, on an executor."""
    settle()
    outcomes: list[Outcome] = []
    write_shards(order, group, outcomes.append)
    return outcomes


def run_groups(context: Any, order: Order, groups: Sequence[Sequence[ShardTask]], on_outcome: OnOutcome) -> None:
    """Runs the groups as a Spark job and tells its outcomes as they arrive, a few times a second. What still runs is
    ended when `on_outcome` raises. Raises SparkFailed."""
    from pyspark.accumulators import AccumulatorParam

    class OutcomeList(AccumulatorParam[list[Outcome]]):
        """Spark adds a finished task's outcomes exactly once, whichever attempt won."""

        def zero(self, value: list[Outcome]) -> list[Outcome]:
            return []

        def addInPlace(self, value1: list[Outcome], value2: list[Outcome]) -> list[Outcome]:
            value1.extend(value2)
            return value1

    arrived, name = context.accumulator([], OutcomeList()), f"feedline-{order.run}"
    errors: list[BaseException] = []

    def run() -> None:
        try:
            context.setJobGroup(name, f"feedline prepare, plan {order.plan_hash[:12]}", True)
            context.parallelize(groups, len(groups)).foreach(lambda group: arrived.add(write_group(order, group)))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    told, running = 0, True
    try:
        while running:
            thread.join(POLL_S)
            running = thread.is_alive()  # asked first, so that the last outcomes are taken too
            for outcome in arrived.value[told:]:
                told += 1
                on_outcome(outcome)
        if errors:
            raise SparkFailed(one_line(errors[0])) from errors[0]
    finally:
        if thread.is_alive():
            with contextlib.suppress(Exception):  # the JVM may be gone already
                context.cancelJobGroup(name)
            thread.join(10)


def one_line(error: BaseException) -> str:
    """What a Spark failure was about, without its traces."""
    text = str(getattr(error, "java_exception", None) or error)
    if "ExecutorLostFailure" in text or "Python worker exited unexpectedly" in text:
        return "a Python worker or executor died again and again (killed, or out of memory?): run again to resume"
    if isinstance(error, ConnectionError | EOFError) or "Answer from Java side is empty" in text or not text.strip():
        return "Spark's JVM died (killed, or out of memory?): run the same command again to resume"
    if "No space left on device" in text:
        where = f"{tempfile.gettempdir()} (or point TMPDIR elsewhere)"
        return f"no space left while Spark worked: free some in {where}, then run the same command again to resume"
    errors = PYTHON_ERROR.findall(text)
    first = (errors[-1] if errors and "Py4J" not in errors[-1] else text.strip().splitlines()[0])[:300]
    return f"Spark could not finish ({first}): run the same command again to resume"


# --- before it starts ---------------------------------------------------------------------------------


def callers_context() -> Any:
    """The SparkContext that the caller has already; None if there is none."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def under_submit() -> bool:
    """Whether spark-submit started us: then there is a JVM, and master and settings are the user's."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def settings(master: str | None, scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """What the job needs of Spark; anything in `extra` wins, a master too."""
    master = extra.get("spark.master", master)
    java = f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData"
    conf = {"spark.app.name": "feedline prepare", "spark.ui.showConsoleProgress": "false"}
    conf |= {f"spark.executorEnv.{name}": value for name, value in ONE_THREAD.items()}
    if not under_submit():  # there, these are the user's
        conf |= {
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.task.maxFailures": str(TASK_ATTEMPTS),
            "spark.driver.extraJavaOptions": f"{java} {LIGHT_JVM}" if is_local(master) else java,
        }
    if is_local(master):
        conf |= {
            "spark.local.dir": str(scratch),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return conf | dict(extra) | ({} if master is None else {"spark.master": with_retries(master)})


def is_local(master: str | None) -> bool:
    return master is not None and re.fullmatch(r"local(\[.*\])?", master) is not None


def with_retries(master: str) -> str:
    """`local[N]` ends the job when one task fails (a killed Python worker, say); `local[N,F]` tries again."""
    match = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{match[1] or 1},{TASK_ATTEMPTS}]" if match else master


# --- the context --------------------------------------------------------------------------------------


@contextlib.contextmanager
def spark_context(master: str | None, conf: Mapping[str, str]) -> Generator[Any]:
    """The caller's own SparkContext when there is one (left running), else a new one that leaves no trace."""
    context = callers_context()
    if context is not None:
        yield context
        return
    with scratch_folder("spark", end_spark_of) as scratch, quiet_py4j():
        master = master or (None if under_submit() else "local[*]")
        try:
            context = start(settings(master, scratch, conf), scratch)
            if server := getattr(context, "_accumulatorServer", None):
                # The thread that hears of finished tasks prints a trace when the JVM dies; we say that in one line.
                server.handle_error = lambda request, client_address: None
            yield context
        finally:
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")  # a JVM that was killed cannot be stopped cleanly
                if context is not None:
                    context.stop()
            if not under_submit():
                end_jvm()
            end_spark_of(scratch)  # whatever kept it from ending as it should


def end_spark_of(folder: Path) -> None:
    """Ends a JVM that was started with files of this folder, or the script that is about to start it. A JVM ends with
    its driver, but for one that had not come up: it fails for want of the folder, and its threads keep it alive."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = "\0".join(process.cmdline())
            if str(folder) in line and ("org.apache.spark" in line or "spark-submit" in line):
                process.kill()


def start(conf: Mapping[str, str], scratch: Path) -> Any:
    """A context of our own. Another thread makes it, which no signal interrupts: whenever one comes, the JVM can be
    ended. There, too, pyspark leaves Ctrl-C alone: its handler would stay, and calls the JVM even amid another call.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    spark_conf = SparkConf().setAll(list(conf.items()))

    def make() -> Any:
        with (scratch / "jvm.log").open("ab") as log:  # the JVM greets with warnings that no setting silences
            gateway = launch_gateway(spark_conf, {"stdout": log, "stderr": log})
        context = SparkContext(conf=spark_conf, environment={**ONE_THREAD}, gateway=gateway)
        context.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
        return context

    with what_a_start_reads(scratch, local=is_local(conf.get("spark.master"))):
        made = ThreadPoolExecutor(1, "feedline-jvm").submit(make)
        try:
            return made.result()
        except Exception as error:
            reason = first_line(getattr(error, "java_exception", None) or error)[:300]
            master = conf.get("spark.master", "of spark-submit")
            raise SparkFailed(f"Spark did not start with master {master} ({reason})") from error
        finally:
            while not made.done():
                end_spark_of(scratch)
                time.sleep(POLL_S / 10)


@contextlib.contextmanager
def what_a_start_reads(scratch: Path, *, local: bool) -> Generator[None]:
    """Settings that are the process's: a local JVM need not know its host's name, and the folder that pyspark makes
    meanwhile goes with ours should we be killed then. Both are put back."""
    address, folder = os.environ.get("SPARK_LOCAL_IP"), tempfile.tempdir
    tempfile.tempdir = str(scratch)
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        yield
    finally:
        tempfile.tempdir = folder
        os.environ.pop("SPARK_LOCAL_IP", None)
        if address is not None:
            os.environ["SPARK_LOCAL_IP"] = address


@contextlib.contextmanager
def quiet_py4j() -> Generator[None]:
    """py4j logs whole traces when its JVM dies, some of them as if they were the user's; we say it in one line."""
    root, silent = logging.getLogger(), logging.NullHandler()
    levels = {logger: logger.level for logger in map(logging.getLogger, ("py4j", "pyspark"))}
    for logger in levels:
        logger.setLevel(logging.CRITICAL + 1)
    root.addFilter(not_of_py4j)
    root.addHandler(silent)  # without any, the first message would install one for good
    try:
        yield
    finally:
        root.removeHandler(silent)
        root.removeFilter(not_of_py4j)
        for logger, level in levels.items():
            logger.setLevel(level)


def not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def end_jvm() -> None:
    """Ends the JVM that pyspark started for us and forgets it, so that the next job may start its own."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    if gateway is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    if (process := getattr(gateway, "proc", None)) is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()
    wait_or_kill(process, 5)
