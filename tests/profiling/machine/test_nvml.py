"""GPU numbers against a faked NVML: sources, what is missing, what is lost mid-run, MIG."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from pytest import approx

from feedline.profiling.machine import nvml as machine
from feedline.profiling.machine.nvml import GPM_METRICS, GpuSampler


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Half a second goes by between two looks."""
    told = {"now_s": 0.0, "period_s": 0.5}

    def now() -> float:
        told["now_s"] += told["period_s"]
        return told["now_s"]

    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=now))
    return told


class NvmlError(Exception):
    pass


class Nvml:
    """As pynvml: functions raise; GPM metrics carry their own return code."""

    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, *, gpus: int = 1, gpm: bool = True, mig: bool = False) -> None:
        self.gpus, self.gpm, self.mig = gpus, gpm, mig
        self.refused: set[str] = set()
        self.missing_metrics: set[int] = set()
        self.samples_alive = 0
        self.compared: list[tuple[int, int]] = []
        self.taken = 0
        self.migrated = 0
        self.shut = False

    def _check(self, name: str) -> None:
        if name in self.refused:
            raise NvmlError("Insufficient Permissions")

    def nvmlShutdown(self) -> None:
        self.shut = True

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        return f"handle-of-{uuid.decode()}"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return f"GPU-{handle}".encode()

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "H200"

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> bool:
        return self.mig

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return "parent"

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:
        return 7

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        self._check("gpm")
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self) -> dict[str, int]:
        self.samples_alive += 1
        return {"time": -1}

    def nvmlGpmSampleFree(self, sample: dict[str, int]) -> None:
        self.samples_alive -= 1

    def nvmlGpmSampleGet(self, handle: str, sample: dict[str, int]) -> None:
        self._check("gpm sample")
        sample["time"] = self.taken
        self.taken += 1

    def nvmlGpmMigSampleGet(self, handle: str, instance: int, sample: dict[str, int]) -> None:
        assert (handle, instance) == ("parent", 7)
        self.migrated += 1
        self.nvmlGpmSampleGet(handle, sample)

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(8)])

    def nvmlGpmMetricsGet(self, asked: Any) -> None:
        self.compared.append((asked.sample1["time"], asked.sample2["time"]))
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = 10.0 * metric.metricId
            metric.nvmlReturn = 3 if metric.metricId in self.missing_metrics else 0

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._check("utilization")
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=2**30, total=2**40)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 250_000

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return 1980

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> int:
        return 100 * (1 + counter)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x4

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=11, usedGpuMemory=5), SimpleNamespace(pid=99, usedGpuMemory=7)]


Seen = dict[tuple[str, str], list[float | None]]
"""Values by name and scope."""


def environment(visible: str | None, **more: str) -> dict[str, str]:
    return more if visible is None else more | {"CUDA_VISIBLE_DEVICES": visible}


def watched(nvml: Nvml, looks: int = 4, visible: str | None = None) -> tuple[GpuSampler, Seen]:
    sampler, seen = GpuSampler(lambda: nvml, environment(visible)), Seen()
    sampler.start()
    for _ in range(looks):
        look(sampler, seen)
    return sampler, seen


def look(sampler: GpuSampler, seen: Seen) -> None:
    for (name, _, scope, _), value in sampler.look({11}):
        seen.setdefault((name, scope), []).append(value)


def test_gpm_metrics_carry_their_source() -> None:
    nvml = Nvml()
    sampler, seen = watched(nvml)
    (gpu,) = sampler.summary()
    assert gpu.source == "gpm"
    assert (gpu.sm_active, gpu.sm_occupancy, gpu.tensor_active, gpu.dram_active) == approx((0.2, 0.3, 0.5, 1.0))
    assert gpu.pcie_rx_bytes_per_s == 210 * 2**20
    assert gpu.sources["sm_active"] == "nvml gpm 2"
    assert gpu.sources["utilization"] == "nvml utilization"
    assert gpu.utilization == 0.5
    assert gpu.throttle_reasons == ["power cap"]
    assert gpu.process_memory_bytes == {"11": 5.0}
    assert seen["sm_active", f"gpu:{gpu.uuid}"] == approx(
        [0.2, 0.2, 0.2]
    )  # the first look has nothing to compare with


def test_gpm_compares_each_sample_with_the_one_before() -> None:
    nvml = Nvml()
    sampler, _ = watched(nvml, looks=5)
    assert nvml.compared == [(0, 1), (1, 2), (2, 3), (3, 4)]
    sampler.stop()
    assert nvml.samples_alive == 0
    assert nvml.shut


def test_samples_that_lie_too_close_together_are_not_compared(clock: dict[str, float]) -> None:
    nvml = Nvml()
    sampler, seen = watched(nvml, looks=2)
    clock["period_s"] = 0.03
    for _ in range(3):
        look(sampler, seen)
    assert nvml.compared == [(0, 1)]
    look(sampler, seen)
    assert nvml.compared == [(0, 1), (1, 2)], "with the sample before the looks that were too soon"


def test_without_gpm_there_is_what_nvml_offers_and_why_not_more() -> None:
    sampler, _ = watched(Nvml(gpm=False))
    (gpu,) = sampler.summary()
    assert gpu.source == "nvml"
    assert gpu.sm_active is None
    assert "Hopper" in gpu.unavailable["gpm"]
    assert gpu.pcie_rx_bytes_per_s == 200 * 1024
    assert gpu.sources["pcie_rx_bytes_per_s"].startswith("nvml pcie")


def test_a_metric_the_gpu_does_not_have_is_none_with_its_reason() -> None:
    nvml = Nvml()
    nvml.missing_metrics = {5}
    (gpu,) = watched(nvml)[0].summary()
    assert gpu.tensor_active is None
    assert gpu.unavailable["tensor_active"] == "gpm metric 5: NVML error 3"
    assert gpu.sm_active == approx(0.2)


def test_permission_lost_in_the_middle_leaves_the_rest_going() -> None:
    nvml = Nvml()
    sampler, seen = watched(nvml, looks=3)
    nvml.refused = {"gpm sample", "utilization"}
    for _ in range(3):
        look(sampler, seen)
    (gpu,) = sampler.summary()
    found = {name: values for (name, _), values in seen.items()}
    assert found["sm_active"] == [approx(0.2), approx(0.2), None, None, None]
    assert found["utilization"] == [0.5, 0.5, 0.5, None, None, None]
    assert found["power_w"] == [250.0] * 6
    assert gpu.sm_active == approx(0.2)
    assert "Permission" in gpu.unavailable["gpm"]


def test_mig_has_no_utilisation_and_asks_its_parent_for_gpm() -> None:
    nvml = Nvml(mig=True)
    (gpu,) = watched(nvml, visible="MIG-1234")[0].summary()
    assert gpu.mig
    assert gpu.utilization is None
    assert "MIG" in gpu.unavailable["utilization"]
    assert gpu.sm_active == approx(0.2)
    assert nvml.migrated == 4


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-handle-0", "GPU-handle-1", "GPU-handle-2"]),
        ("2,0", ["GPU-handle-2", "GPU-handle-0"]),
        ("1,-1,0", ["GPU-handle-1"]),
        ("GPU-ab", ["GPU-handle-of-GPU-ab"]),
        ("GPU-handle-2,GPU-h", ["GPU-handle-2", "GPU-handle-0"]),
        ("MIG-ab", ["GPU-handle-of-MIG-ab"]),
        ("", []),
    ],
)
def test_only_the_visible_gpus(visible: str | None, uuids: list[str]) -> None:
    sampler = GpuSampler(lambda: Nvml(gpus=3), environment(visible))
    sampler.start()
    assert [gpu.uuid for gpu in sampler.summary()] == uuids


class Split(Nvml):
    """Its second GPU is split; of what it is split into the first is somebody else's."""

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [int(handle == "handle-1"), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:
        if number == 0:
            raise NvmlError("Insufficient Permissions")
        return f"{handle}-part-{number}"


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-handle-0", "GPU-handle-1-part-1", "GPU-handle-1-part-2"]),
        ("1", ["GPU-handle-1-part-1", "GPU-handle-1-part-2"]),
        ("MIG-ab", ["GPU-handle-of-MIG-ab"]),
    ],
)
def test_of_a_gpu_that_is_split_its_parts_are_watched(visible: str | None, uuids: list[str]) -> None:
    sampler = GpuSampler(lambda: Split(gpus=2), environment(visible))
    sampler.start()
    assert [gpu.uuid for gpu in sampler.summary()] == uuids


@pytest.mark.parametrize(
    ("only", "uuids"),
    [
        ("handle-2", ["GPU-handle-2"]),
        ("handle-1-part-2", ["GPU-handle-1-part-2"]),
        ("unheard of", ["GPU-handle-0"]),
        ("", ["GPU-handle-0"]),
    ],
)
def test_one_of_them_is_found_by_its_uuid_however_cuda_numbers_it(only: str, uuids: list[str]) -> None:
    sampler = GpuSampler(lambda: Split(gpus=3), environment("0"), only=only)
    sampler.start()
    assert [gpu.uuid for gpu in sampler.summary()] == uuids


def test_gpus_of_others_have_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_us(self: Nvml, index: int) -> str:
        if index == 0:
            raise NvmlError("Insufficient Permissions")
        return f"handle-{index}"

    monkeypatch.setattr(Nvml, "nvmlDeviceGetHandleByIndex", of_us)
    sampler = GpuSampler(lambda: Nvml(gpus=3), environment("1"))
    sampler.start()
    assert [gpu.uuid for gpu in sampler.summary()] == ["GPU-handle-2"]


class TwoKinds(Nvml):
    """CUDA's first GPU is the second by the bus."""

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "H200" if handle == "handle-1" else "T400"


@pytest.mark.parametrize(
    ("visible", "order", "uuids"),
    [
        ("0", {}, []),
        ("GPU-handle-1,0", {}, []),
        ("0", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, []),
        ("0", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["GPU-handle-0"]),
        ("0,1", {}, ["GPU-handle-0", "GPU-handle-1"]),
        ("GPU-handle-1", {}, ["GPU-handle-1"]),
        (None, {}, ["GPU-handle-0", "GPU-handle-1"]),
    ],
)
def test_a_number_that_may_mean_another_gpu_shows_none(
    visible: str | None, order: dict[str, str], uuids: list[str]
) -> None:
    sampler = GpuSampler(lambda: TwoKinds(gpus=2), environment(visible, **order))
    sampler.start()
    assert [gpu.uuid for gpu in sampler.summary()] == uuids
    assert ("set CUDA_DEVICE_ORDER=PCI_BUS_ID" in sampler.note) == (not uuids)


@pytest.mark.parametrize(
    "error", [ImportError("No module named 'pynvml'"), NvmlError("NVML Shared Library Not Found")]
)
def test_no_nvml_is_said(error: Exception) -> None:
    def load() -> Any:
        raise error

    sampler = GpuSampler(load)
    sampler.start()
    assert list(sampler.look(set())) == []
    assert sampler.summary() == []
    assert sampler.note.startswith("no GPU numbers: ")
    sampler.stop()


def test_an_nvml_without_a_gpu() -> None:
    sampler = GpuSampler(lambda: Nvml(gpus=0), {})
    sampler.start()
    assert "no GPU is visible" in sampler.note
    assert set(GPM_METRICS) == {2, 3, 5, 10, 20, 21}


@pytest.mark.gpu
def test_a_gpu_tells_what_it_does_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    import torch

    monkeypatch.undo()
    sampler = GpuSampler()
    sampler.start()
    ended = torch.cuda.Event()
    list(sampler.look({os.getpid()}))
    for _ in range(20):
        torch.cuda._sleep(150_000_000)
    ended.record()
    time.sleep(0.3)  # GPM compares what lies apart
    rows = list(sampler.look({os.getpid()}))
    assert not ended.query(), "it was busy all the while"
    (gpu, *_) = sampler.summary()
    sampler.stop()
    assert gpu.name and gpu.memory_total_bytes and rows
    assert (gpu.sm_active is None) == bool({"sm_active", "gpm"} & gpu.unavailable.keys())
    if gpu.sm_active is not None:
        assert 0 < gpu.sm_active < 0.2, "one thread keeps one multiprocessor busy"
    ended.synchronize()
