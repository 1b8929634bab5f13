"""Spark as an engine of `prepare`: groups of tasks out, outcomes back, and no process or file left behind.

Spark carries descriptors out and short outcomes back; pixels never enter the JVM. This is the only file that imports
pyspark, and only when a job runs.
"""

import contextlib
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.scratch import end_spark_of, scratch_folder
from feedline.preprocess.engine import EngineRun, OnOutcome, grouped, write_group
from feedline.preprocess.jvm import (
    ONE_THREAD,
    check_java,
    environment,
    output_to,
    own_interrupts,
    quiet_py4j,
    settings,
    temporary_files_in,
    under_submit,
)
from feedline.preprocess.write_shard import Order, Outcome, ShardTask, settle

POLL_S = 0.5


class SparkFailed(FeedlineError):
    """Spark itself could not do the job."""


@dataclass(frozen=True, kw_only=True)
class SparkEngine:
    """Tasks on Spark: on the caller's own SparkContext when there is one, else on one that leaves no trace."""

    master: str | None = None
    """None means that of spark-submit, else local[*]."""
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    """More Spark settings, as for `spark-submit --conf`."""

    def check(self) -> None:
        """Raises FeedlineError where there is no Java; under spark-submit, or with a context, there is one."""
        if not under_submit() and not has_context():
            check_java()

    def elsewhere(self) -> str:
        master = self._master()
        return "" if master.startswith("local") else master

    def _master(self) -> str:
        """The master that the job will run on; of spark-submit's, what its JVM says."""
        if has_context():
            from pyspark import SparkContext

            return str(getattr(SparkContext._active_spark_context, "master", ""))
        asked = self.conf.get("spark.master") or self.master
        if asked is None and under_submit():
            from pyspark import SparkConf, SparkContext

            SparkContext._ensure_initialized()
            return str(SparkConf().get("spark.master", ""))
        return asked or "local[*]"

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        times = [time.monotonic()]
        with deaths_in_one_line(), spark_context(self.master, self.conf) as context:
            warm_up(context)
            times.append(time.monotonic())
            parallelism, master = context.defaultParallelism, context.master
            job = Job(context, order, tasks)
            try:
                for outcome in job.outcomes():
                    on_outcome(outcome)
            finally:
                job.cancel()
            times.append(time.monotonic())
        start_s, run_s, stop_s = (later - sooner for sooner, later in pairwise([*times, time.monotonic()]))
        return EngineRun(start_s=start_s, run_s=run_s, stop_s=stop_s, parallelism=parallelism, master=master)


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


class Job:
    """The Spark job in a thread of its own, and what is heard of it meanwhile."""

    def __init__(self, context: Any, order: Order, tasks: Sequence[ShardTask]) -> None:
        self._context = context
        self._arrived = context.accumulator([], outcome_list())
        self._group = f"feedline-{order.run}"
        groups = grouped(tasks, context.defaultParallelism)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(order, groups), name=self._group, daemon=True)
        self._thread.start()

    def _run(self, order: Order, groups: Sequence[Sequence[ShardTask]]) -> None:
        try:
            self._context.setJobGroup(self._group, f"feedline prepare, plan {order.plan_hash[:12]}", True)
            arrived = self._arrived
            rdd = self._context.parallelize(groups, len(groups))
            rdd.foreach(lambda group: arrived.add(write_group(order, group)))
        except BaseException as error:
            self._error = error

    def outcomes(self) -> Iterator[Outcome]:
        """As they arrive, a few times a second. Raises SparkFailed."""
        taken, running = 0, True
        while running:
            self._thread.join(POLL_S)
            running = self._thread.is_alive()  # asked first, so that the last outcomes are taken too
            fresh = self._arrived.value[taken:]
            taken += len(fresh)
            yield from fresh
        if self._error is not None:
            raise SparkFailed(one_line(self._error)) from self._error

    def cancel(self) -> None:
        """Ends what still runs; nothing when it is done."""
        if self._thread.is_alive():
            with contextlib.suppress(Exception):  # the JVM may be gone already
                self._context.cancelJobGroup(self._group)
            self._thread.join(10)


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
def spark_context(master: str | None, conf: Mapping[str, str]) -> Generator[Any]:
    """The caller's own SparkContext when there is one (left running), else a new one that leaves no trace."""
    if has_context():
        from pyspark import SparkContext

        yield SparkContext._active_spark_context
        return
    with scratch_folder("spark") as scratch, quiet_py4j():
        master = master or (None if under_submit() else "local[*]")
        context = None
        try:
            with environment(master), output_to(scratch / "jvm.log"), temporary_files_in(scratch), own_interrupts():
                context = start(settings(master, scratch, conf), scratch)
            quiet_accumulators(context)
            yield context
        finally:
            stop(context, keep_jvm=under_submit())
            end_spark_of(scratch)  # whatever kept it from ending as it should


def has_context() -> bool:
    """Whether the caller has a SparkContext already."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


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
