"""GPU numbers through NVML: GPM metrics where the GPU has them (Hopper and later), else what plain NVML offers.

Every number carries its source; one that cannot be had is None with the reason, never 0. A GPU's permission may
vanish while it is watched (a container's device rules, a driver reset): what was refused is not asked again, the rest
goes on. MIG: a MIG device has no utilisation of its own, and GPM is asked through its parent.

GPM compares two samples of a device's counters; ours are taken a period apart and swapped.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from feedline.profiling.record.recording import Gpu

# NVML_GPM_METRIC_* -> our name, unit, factor to that unit
GPM_METRICS: dict[int, tuple[str, str, float]] = {
    2: ("sm_active", "fraction", 0.01),
    3: ("sm_occupancy", "fraction", 0.01),
    5: ("tensor_active", "fraction", 0.01),
    10: ("dram_active", "fraction", 0.01),
    20: ("pcie_tx_bytes_per_s", "B/s", 2.0**20),
    21: ("pcie_rx_bytes_per_s", "B/s", 2.0**20),
}
PLAIN = ("utilization", "memory_used_bytes", "memory_total_bytes", "power_w", "sm_clock_mhz",
         "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")  # fmt: skip
THROTTLE_REASONS = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "hardware power brake",
}


FROM_ENVIRONMENT = "CUDA_VISIBLE_DEVICES"
"""Of `visible`: read it from the environment; None is all GPUs, as when the variable is not set."""


def load_nvml() -> Any:
    """The module, initialised; raises anything at all where there is no NVML or no GPU."""
    if sys.platform == "linux":
        ctypes.CDLL("libnvidia-ml.so.1")  # 0.2 ms where it is missing; finding that out through pynvml takes 60
    import pynvml

    pynvml.nvmlInit()
    return pynvml


class GpuSampler:
    """The GPUs the script may use. Never raises."""

    def __init__(self, load: Callable[[], Any] = load_nvml, *, visible: str | None = FROM_ENVIRONMENT) -> None:
        self.note = ""
        self._load = load
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible == FROM_ENVIRONMENT else visible
        self._nvml: Any = None
        self._devices: list[_Device] = []

    def start(self) -> None:
        try:
            self._nvml = self._load()
            self._devices = [_Device(self._nvml, handle, number) for number, handle in self._handles()]
        except Exception as error:  # no library, no driver, no permission: each its own exception
            self.note = f"no GPU numbers: {_reason(error)}"
            return
        if not self._devices:
            self.note = "no GPU numbers: no GPU is visible"
            return
        gpm = [one for one in self._devices if one.gpm]
        self.note = f"{len(self._devices)} GPU, " + ("GPM counters" if gpm else "NVML only: no GPM counters here")

    def look(self, series: Any, now: float, pids: set[int]) -> None:
        for device in self._devices:
            for name, unit, source, value in device.read(pids):
                series.add(name, unit, f"gpu:{device.uuid}", source, now, value)

    def summary(self) -> list[Gpu]:
        return [device.summary() for device in self._devices]

    def stop(self) -> None:
        for device in self._devices:
            device.free()
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except Exception:
                pass
            self._nvml = None

    def _handles(self) -> list[tuple[int, Any]]:
        """(index, handle) of the visible devices; MIG instances where a device is split and one is named."""
        count = self._nvml.nvmlDeviceGetCount()
        everything = [(index, self._nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
        if self._visible is None or not self._visible.strip():
            return everything if self._visible is None else []
        found: list[tuple[int, Any]] = []
        for word in map(str.strip, self._visible.split(",")):
            if word.lstrip("-").isdigit():
                index = int(word)
                if not 0 <= index < count:  # CUDA ignores everything from the first invalid one on
                    break
                found.append(everything[index])
            else:
                found.append((len(found), self._nvml.nvmlDeviceGetHandleByUUID(_text(word))))
        return found


class _Device:
    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml = nvml
        self.handle = handle
        self.index = index
        self.unavailable: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self._reasons: set[str] = set()
        self._process_bytes: dict[str, float] = {}
        self.uuid = str(self._try("uuid", lambda: _decoded(nvml.nvmlDeviceGetUUID(handle))) or f"GPU-{index}")
        self.name = self._try("name", lambda: _decoded(nvml.nvmlDeviceGetName(handle)))
        self.mig = bool(self._try("mig", lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)))
        self._parent = handle
        self._instance: int | None = None
        if self.mig:
            parent = self._try("mig parent", lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
            self._parent = parent if parent is not None else handle
            self._instance = self._try("mig instance", lambda: nvml.nvmlDeviceGetGpuInstanceId(handle))
        self._samples: list[Any] = []
        self._primed = False
        self.gpm = self._start_gpm()

    def _try(self, what: str, read: Callable[[], Any]) -> Any:
        """The value, or None; what was refused once is not asked again."""
        if what in self.unavailable:
            return None
        try:
            return read()
        except Exception as error:
            self.unavailable[what] = _reason(error)
            return None

    # --- GPM ----------------------------------------------------------------------------------------------

    def _start_gpm(self) -> bool:
        nvml = self._nvml
        support = self._try("gpm", lambda: nvml.nvmlGpmQueryDeviceSupport(self._parent).isSupportedDevice)
        if not support:
            self.unavailable.setdefault("gpm", "not supported by this GPU (Hopper and later)")
            return False
        for _ in range(2):
            sample = self._try("gpm", nvml.nvmlGpmSampleAlloc)
            if sample is None:
                self.free()
                return False
            self._samples.append(sample)
        return True

    def _take_sample(self, sample: Any) -> bool:
        nvml = self._nvml

        def take() -> bool:
            if self._instance is not None:
                nvml.nvmlGpmMigSampleGet(self._parent, self._instance, sample)
            else:
                nvml.nvmlGpmSampleGet(self._parent, sample)
            return True

        return bool(self._try("gpm", take))

    def _read_gpm(self) -> dict[str, tuple[str, str, float]]:
        """name -> (unit, source, value); empty on the first look and once GPM is refused."""
        if not self.gpm or not self._take_sample(self._samples[1]):
            self.gpm = self.gpm and "gpm" not in self.unavailable
            return {}
        before, after = self._samples
        self._samples = [after, before]
        if not self._primed:
            self._primed = True
            return {}
        return self._try("gpm", lambda: self._metrics(before, after)) or {}

    def _metrics(self, before: Any, after: Any) -> dict[str, tuple[str, str, float]]:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(GPM_METRICS)
        asked.sample1, asked.sample2 = before, after
        for position, metric in enumerate(GPM_METRICS):
            asked.metrics[position].metricId = metric
        nvml.nvmlGpmMetricsGet(asked)
        found: dict[str, tuple[str, str, float]] = {}
        for position, (metric, (name, unit, factor)) in enumerate(GPM_METRICS.items()):
            answer = asked.metrics[position]
            value = float(answer.value)
            if answer.nvmlReturn == 0 and value == value:
                found[name] = (unit, f"nvml gpm {metric}", value * factor)
            else:
                self.unavailable.setdefault(name, f"gpm metric {metric}: NVML error {answer.nvmlReturn}")
        return found

    # --- plain NVML ---------------------------------------------------------------------------------------

    def _read_plain(self) -> dict[str, tuple[str, str, float]]:
        nvml, handle = self._nvml, self.handle
        found: dict[str, tuple[str, str, float]] = {}

        def keep(name: str, unit: str, source: str, read: Callable[[], float]) -> None:
            value = self._try(name, read)
            if value is not None:
                found[name] = (unit, source, float(value))

        if self.mig:
            self.unavailable.setdefault("utilization", "NVML offers none for a MIG device")
        keep("utilization", "fraction", "nvml utilization",
             lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)  # fmt: skip
        keep("memory_used_bytes", "B", "nvml memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        keep("memory_total_bytes", "B", "nvml memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
        keep("power_w", "W", "nvml power", lambda: nvml.nvmlDeviceGetPowerUsage(self._parent) / 1e3)
        keep("sm_clock_mhz", "MHz", "nvml clock", lambda: nvml.nvmlDeviceGetClockInfo(self._parent, 1))
        if not self.gpm:
            for name, counter in (("pcie_tx_bytes_per_s", 0), ("pcie_rx_bytes_per_s", 1)):
                keep(name, "B/s", "nvml pcie throughput (20 ms)",
                     lambda counter=counter: nvml.nvmlDeviceGetPcieThroughput(handle, counter) * 1024.0)  # fmt: skip
        return found

    def _read_states(self, pids: set[int]) -> None:
        nvml = self._nvml
        mask = self._try("throttle_reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._parent))
        self._reasons |= {name for bit, name in THROTTLE_REASONS.items() if mask and mask & bit}
        running = self._try("processes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)) or []
        for process in running:
            if process.pid in pids and process.usedGpuMemory is not None:
                used = float(process.usedGpuMemory)
                self._process_bytes[str(process.pid)] = max(used, self._process_bytes.get(str(process.pid), 0.0))

    def read(self, pids: set[int]) -> list[tuple[str, str, str, float | None]]:
        """(name, unit, source, value) of everything this device tells now; None for what it has ceased to tell."""
        found = {**self._read_plain(), **self._read_gpm()}
        self._read_states(pids)
        for name, (_, source, value) in found.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)
            self.sources[name] = source
        rows: list[tuple[str, str, str, float | None]] = [
            (name, unit, source, value) for name, (unit, source, value) in found.items()
        ]
        return rows + [(name, "", self.sources[name], None) for name in self._sums if name not in found]

    def summary(self) -> Gpu:
        means = {name: total / count for name, (total, count) in self._sums.items() if count}
        return Gpu(
            uuid=self.uuid,
            name=self.name,
            index=self.index,
            mig=self.mig,
            source="gpm" if any(s.startswith("nvml gpm") for s in self.sources.values()) else "nvml",
            throttle_reasons=sorted(self._reasons),
            process_memory_bytes=self._process_bytes,
            sources=self.sources,
            unavailable=self.unavailable,
            **{name: means.get(name) for name in {*(m[0] for m in GPM_METRICS.values()), *PLAIN}},
        )

    def free(self) -> None:
        for sample in self._samples:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except Exception:
                pass
        self._samples.clear()
        self.gpm = False


def _decoded(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _text(word: str) -> Any:
    return word.encode()


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, OSError) and "libnvidia-ml" in text:
        return "no NVIDIA driver here"
    return "NVML is not installed (nvidia-ml-py)" if isinstance(error, ImportError) else text.splitlines()[0]
