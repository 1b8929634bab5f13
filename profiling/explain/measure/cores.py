"""The cores that a script had while its steps ran, and how many other programs took from it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from feedline.profiling.record.recording import Recording, Step
from feedline.profiling.record.windows import mean_over, of_lowest_rank

NOTABLE = 0.2  # share of its cores from which what other programs take counts …
FULL = 0.85  # … on a machine of which this share is busy


@dataclass(frozen=True, kw_only=True)
class Machine:
    cores: float  # usable by all ranks and their workers together
    own: float  # of them, those that ranks and workers use
    ranks: int
    on_cpu: bool  # the model computes on the same cores as the workers
    others_busy: float  # cores that other programs used while the steps ran; 0 where nobody counted
    others_cores: float  # those that they took from the script: a fifth or more of its own, where none was free
    throttled: float  # share of the time in which a quota kept the script from running; 0 where nobody counted

    @property
    def others_error(self) -> float:
        """Relative error of a rate that lacks these cores: half of their share, so that the 95 % interval reaches
        from none of it to all."""
        return 0.5 * self.others_cores / self.cores

    def others_as_processes(self, own: int, *, lacking: bool) -> float:
        """How many processes of others want a core, each as much as one of its `own`: one for each core that they
        took; where its own lack cores (`lacking`), so many that what it has is its fair share."""
        each = max(self.cores - self.others_cores, 0.1 * self.cores) / own
        return self.others_cores / min(1.0, each) if lacking else self.others_cores


def measure_machine(recording: Recording, steps: Sequence[Step], samples_per_s: float, *, anew: bool) -> Machine:
    """Others' cores are those busy on the whole machine less those that the script's own processes used: by their
    clocks where these were read, else by the sampler, whichever says more, so that a worker that lived shortly is not
    mistaken for another program; those that live for one batch (`anew`) are counted when they have ended. Cores that
    the host gave to other guests are others', too."""
    cores, costs = float(recording.host.get("affinity") or recording.host.get("cores") or 1), recording.costs
    windows = of_lowest_rank(steps)
    of_host = {
        series.name: mean_over(series, windows) or 0.0 for series in recording.series if series.scope == "host"
    }
    own = ("cpu_cores", "ended_children_cores") if anew else ("cpu_cores",)
    of_script = (series for series in recording.series if series.name in own and series.scope != "host")
    sampled = sum(mean_over(series, windows) or 0.0 for series in of_script)
    host = of_host.get("cpu_cores", 0.0) + of_host.get("steal_cores", 0.0)
    own_cores = max(samples_per_s * ((costs.worker_cpu_s or 0.0) + (costs.trainer_cpu_s or 0.0)), sampled)
    all_cores = float(recording.host.get("cores") or cores)
    others, full = max(0.0, host - own_cores), host >= FULL * all_cores
    taken = min(others, cores if cores >= all_cores else max(0.0, cores - own_cores))  # of those that it may use
    return Machine(
        cores=cores,
        own=own_cores,
        ranks=max(1, recording.compute.world_size),
        on_cpu=recording.compute.device == "cpu",
        others_busy=others,
        others_cores=taken if full and taken >= NOTABLE * cores else 0.0,
        throttled=min(1.0, of_host.get("cgroup_throttled", 0.0) / cores),  # added up over the cores
    )
