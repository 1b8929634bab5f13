"""What the page faults of a model on the CPU cost: glibc gives a step's activations back to the kernel, and the next
step takes them again, zeroed, page by page. Pure."""

from feedline.profiling.record.recording import Compute

LEAST_KERNEL_SHARE = 0.04
LEAST_FAULTS = 200
"""Per step; below either, keeping memory would gain nothing that can be told from noise."""
FAULTS_COST = 1.25
"""Exponent of the share of CPU time that is not the kernel's: threads also wait for the one that faults. Fitted to
the four models of results/allocation.json (1.2, 1.5, 2.0, 1.2 times as fast), within 9 % of each."""
FAULTS_ERROR = 0.09


def kernel_share(compute: Compute) -> float:
    """Of the model's CPU time."""
    return compute.kernel_cpu_s / max(compute.kernel_cpu_s + compute.user_cpu_s, 1e-9)


def faults_per_step(compute: Compute) -> float:
    return compute.page_faults / compute.faulty_steps if compute.faulty_steps else 0.0


def left_without(compute: Compute) -> float:
    """The share of a step's time that is left when freed memory is kept; 1 where that would gain nothing."""
    share = kernel_share(compute)
    if compute.device != "cpu" or share < LEAST_KERNEL_SHARE or faults_per_step(compute) < LEAST_FAULTS:
        return 1.0
    return (1 - share) ** FAULTS_COST
