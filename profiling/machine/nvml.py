"""GPU numbers through NVML: GPM metrics where the GPU has them (Hopper and later), else what plain NVML offers.

Every number carries its source; one that cannot be had is None with the reason, never 0. A GPU's permission may
vanish while it is watched (a container's device rules, a driver reset): what was refused is not asked again, the rest
goes on. MIG: a MIG device has no utilisation of its own, and GPM is asked through its parent.

GPM compares two samples of a device's counters; ours are taken a period apart and swapped. What lies closer together
than a tenth of a second says nothing.

CUDA_VISIBLE_DEVICES counts GPUs in CUDA's order, fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and NVML by
their bus. Among GPUs that are alike these are the same; where they are not, a number may mean another GPU, and none
is shown.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import takewhile
from typing import Any

from feedline.pipeline.base.errors import first_line
from feedline.pipeline.base.text import count_of
from feedline.profiling.record.measurements import GPU_MEANS, Gpu

# A new metric is one row in one of these two tables, a field of `Gpu`, and its words in `render/report_time.py`.
GPM_METRICS: dict[int, tuple[str, str, float]] = {
    2: ("sm_active", "fraction", 0.01),
    3: ("sm_occupancy", "fraction", 0.01),
    5: ("tensor_active", "fraction", 0.01),
    10: ("dram_active", "fraction", 0.01),
    20: ("pcie_tx_bytes_per_s", "B/s", 2.0**20),
    21: ("pcie_rx_bytes_per_s", "B/s", 2.0**20),
}
"""NVML_GPM_METRIC_* -> our name, unit, factor to that unit."""
PLAIN: tuple[tuple[str, str, str, Callable[[Any, "Device"], float]], ...] = (
    ("utilization", "fraction", "nvml utilization",
     lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100),
    ("memory_used_bytes", "B", "nvml memory", lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu.handle).used),
    ("memory_total_bytes", "B", "nvml memory", lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu.handle).total),
    ("power_w", "W", "nvml power", lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu.parent) / 1e3),
    ("sm_clock_mhz", "MHz", "nvml clock", lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu.parent, 1)),
    ("pcie_tx_bytes_per_s", "B/s", "nvml pcie throughput (20 ms)",
     lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu.handle, 0) * 1024.0),
    ("pcie_rx_bytes_per_s", "B/s", "nvml pcie throughput (20 ms)",
     lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu.handle, 1) * 1024.0),
)  # fmt: skip
"""Name, unit, source and how to read it; what GPM tells is not asked here too."""
GPM_LEAST_S = 0.1
THROTTLE_REASONS = {4: "power cap", 8: "hardware slowdown", 32: "software thermal slowdown",
                    64: "hardware thermal slowdown", 128: "hardware power brake"}  # fmt: skip
"""By bit."""


def load_nvml() -> Any:
    """The module, initialised; raises anything at all where there is no NVML or no GPU."""
    if sys.platform == "linux":
        ctypes.CDLL("libnvidia-ml.so.1")  # 0.2 ms where it is missing; finding that out through pynvml takes 60
    import pynvml

    pynvml.nvmlInit()
    return pynvml


class GpuSampler:
    """The GPUs the script may use, as CUDA_VISIBLE_DEVICES in its environment names them, else all. Never raises."""

    def __init__(
        self, load: Callable[[], Any] = load_nvml, environment: Mapping[str, str] = os.environ, *, only: str = ""
    ) -> None:
        """`only`: the UUID, as torch has it, of the one to look at; where there is none such, as without it."""
        self.note = ""
        self._only = only
        self._load = load
        self._environment = environment
        self._nvml: Any = None
        self._devices: list[Device] = []

    def start(self) -> None:
        try:
            self._nvml = self._load()
            self._devices = [Device(self._nvml, handle, index) for index, handle in self._visible()]
        except Exception as error:  # no library, no driver, no permission: each its own exception
            self.note = f"no GPU numbers: {_reason(error)}"
            return
        gpm = "GPM counters" if any(device.gpm for device in self._devices) else "NVML only: no GPM counters here"
        seen = count_of(len(self._devices), "GPU")
        self.note = f"{seen}, {gpm}" if self._devices else "no GPU numbers: no GPU is visible"

    def look(self, pids: set[int]) -> Iterator[tuple[tuple[str, str, str, str], float | None]]:
        """((name, unit, scope, source), value) of all that the GPUs tell now of themselves and these processes."""
        for device in self._devices:
            for name, unit, source, value in device.read(pids):
                yield (name, unit, f"gpu:{device.uuid}", source), value

    def summary(self) -> list[Gpu]:
        return [device.summary() for device in self._devices]

    def stop(self) -> None:
        for device in self._devices:
            device.free()
        if self._nvml is not None:
            with suppress(Exception):
                self._nvml.nvmlShutdown()
            self._nvml = None

    def _visible(self) -> list[tuple[int, Any]]:
        """(index, handle) of those to look at; MIG instances where a device is split."""
        handles = list[Any]()
        for index in range(self._nvml.nvmlDeviceGetCount()):
            with suppress(Exception):  # others' GPUs are counted, too, where permissions keep them apart
                handles.append(self._nvml.nvmlDeviceGetHandleByIndex(index))
        parts = [(index, part) for index, handle in enumerate(handles) for part in self._parts(handle)]
        for index, part in parts if self._only else ():
            if _text(self._nvml.nvmlDeviceGetUUID(part)).endswith(self._only):
                return [(index, part)]
        visible = self._environment.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return parts
        named = self._named_by(visible, handles)
        return [(index, part) for index, handle in named for part in self._parts(handle)]

    def _named_by(self, visible: str, handles: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        numbers = [*map(str, range(len(handles)))]
        words = [word.strip() for word in visible.split(",")]
        # CUDA ignores everything from the first number on that is none of a GPU
        words = [*takewhile(lambda word: word in numbers or not word.lstrip("-").isdigit(), words)]
        self._check_order({word for word in words if word in numbers}, handles)
        for position, word in enumerate(filter(None, words)):
            if word in numbers:
                yield int(word), handles[int(word)]
            else:
                yield position, self._named(word, handles)

    def _parts(self, handle: Any) -> list[Any]:
        """The MIG instances of a GPU that is split: a process has one of them, and the whole is everybody's."""
        parts = list[Any]()
        with suppress(Exception):  # it cannot be split, or NVML is too old to say so
            if self._nvml.nvmlDeviceGetMigMode(handle)[0]:
                for number in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                    with suppress(Exception):  # none is there, or it is somebody else's
                        parts.append(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
        return parts or [handle]

    def _named(self, word: str, handles: Sequence[Any]) -> Any:
        """Of a UUID; of a GPU's CUDA takes the beginning too."""
        if word.startswith("GPU-"):
            for handle in handles:
                if _text(self._nvml.nvmlDeviceGetUUID(handle)).startswith(word):
                    return handle
        return self._nvml.nvmlDeviceGetHandleByUUID(word.encode())

    def _check_order(self, numbers: Set[str], handles: Sequence[Any]) -> None:
        """Raises ValueError where these do not say which GPUs they mean."""
        by_bus = self._environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if by_bus or not 0 < len(numbers) < len(handles):
            return
        if len({self._nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1:
            what = "CUDA_VISIBLE_DEVICES numbers GPUs that are not alike, the fastest first"
            raise ValueError(f"{what}: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID")


class Device:
    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml, self.handle, self._index = nvml, handle, index
        self._unavailable: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self._throttled_by: set[str] = set()
        self._process_bytes: dict[str, float] = {}
        self._samples: list[Any] = []
        self._sampled_s: float | None = None  # when the one before was taken
        self.uuid = _text(self._try("uuid", lambda: nvml.nvmlDeviceGetUUID(handle)) or f"GPU-{index}")
        name = self._try("name", lambda: nvml.nvmlDeviceGetName(handle))
        self._name = None if name is None else _text(name)
        self._mig = bool(self._try("mig", lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)))
        self.parent, self._instance = handle, None
        if self._mig:
            parent = self._try("mig parent", lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
            self.parent = handle if parent is None else parent
            self._instance = self._try("mig instance", lambda: nvml.nvmlDeviceGetGpuInstanceId(handle))
            self._unavailable["utilization"] = "NVML offers none for a MIG device"
        if self._try("gpm", lambda: nvml.nvmlGpmQueryDeviceSupport(self.parent).isSupportedDevice):
            self._samples = [self._try("gpm", nvml.nvmlGpmSampleAlloc) for _ in range(2)]
        else:
            self._unavailable.setdefault("gpm", "not supported by this GPU (Hopper and later)")

    @property
    def gpm(self) -> bool:
        return bool(self._samples) and "gpm" not in self._unavailable

    def read(self, pids: set[int]) -> list[tuple[str, str, str, float | None]]:
        """(name, unit, source, value) of everything this device tells now; None for what it has ceased to tell."""
        nvml, by_gpm = self._nvml, {name for name, _, _ in GPM_METRICS.values()} if self.gpm else set[str]()
        rows: list[tuple[str, str, str, float | None]] = []
        for name, unit, source, read in PLAIN:
            value = None if name in by_gpm else self._try(name, lambda read=read: float(read(nvml, self)))
            rows += [] if value is None else [(name, unit, source, value)]
        if self.gpm:
            rows += self._try("gpm", self._read_gpm) or []
        for name, _, source, value in rows:
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name], self._sources[name] = (total + (value or 0.0), count + 1), source
        mask = self._try("throttle_reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.parent))
        self._throttled_by |= {name for bit, name in THROTTLE_REASONS.items() if (mask or 0) & bit}
        for process in self._try("processes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)) or []:
            if process.pid in pids and process.usedGpuMemory is not None:
                most = max(float(process.usedGpuMemory), self._process_bytes.get(str(process.pid), 0.0))
                self._process_bytes[str(process.pid)] = most
        known = {name for name, _, _, _ in rows}
        return rows + [(name, "", self._sources[name], None) for name in self._sums if name not in known]

    def summary(self) -> Gpu:
        means = {name: total / count for name, (total, count) in self._sums.items()}
        return Gpu(
            uuid=self.uuid,
            name=self._name,
            index=self._index,
            mig=self._mig,
            source="gpm" if any(source.startswith("nvml gpm") for source in self._sources.values()) else "nvml",
            throttle_reasons=sorted(self._throttled_by),
            process_memory_bytes=self._process_bytes,
            sources=self._sources,
            unavailable=self._unavailable,
            **{name: means.get(name) for name in GPU_MEANS},
        )

    def free(self) -> None:
        for sample in self._samples:
            with suppress(Exception):
                self._nvml.nvmlGpmSampleFree(sample)
        self._samples.clear()

    def _try(self, what: str, read: Callable[[], Any]) -> Any:
        """The value, or None; what was refused once is not asked again."""
        if what in self._unavailable:
            return None
        try:
            return read()
        except Exception as error:
            self._unavailable[what] = _reason(error)
            return None

    def _read_gpm(self) -> list[tuple[str, str, str, float | None]]:
        """Takes a sample and compares it with the one before; empty on the first look, and too soon after another."""
        nvml, (before, after), now_s = self._nvml, self._samples, time.monotonic()
        if self._sampled_s is not None and now_s - self._sampled_s < GPM_LEAST_S:
            return []
        if self._instance is None:
            nvml.nvmlGpmSampleGet(self.parent, after)
        else:
            nvml.nvmlGpmMigSampleGet(self.parent, self._instance, after)
        self._samples.reverse()
        first, self._sampled_s = self._sampled_s is None, now_s
        if first:
            return []
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        asked.sample1, asked.sample2 = before, after
        for place, metric in enumerate(GPM_METRICS):
            asked.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(asked)
        rows: list[tuple[str, str, str, float | None]] = []
        for answer, (metric, (name, unit, factor)) in zip(asked.metrics, GPM_METRICS.items(), strict=False):
            value = float(answer.value)
            if answer.nvmlReturn == 0 and value == value:
                rows.append((name, unit, f"nvml gpm {metric}", value * factor))
            else:
                self._unavailable.setdefault(name, f"gpm metric {metric}: NVML error {answer.nvmlReturn}")
        return rows


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and "libnvidia-ml" in str(error):
        return "no NVIDIA driver here"
    return "NVML is not installed (nvidia-ml-py)" if isinstance(error, ImportError) else first_line(error)
