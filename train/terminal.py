"""Events as text: the progress line, an epoch's line and the final summary. Pure; `cli.train` prints them."""

from typing import Any

from feedline.train.metrics import Event


def opening(event: Event) -> str:
    config = event["config"]
    return (
        f"{config['model']} ({event['parameters']:,} parameters, {event['classes']} classes) on {event['device']}, "
        f"{event['world_size']} rank{'s' * (event['world_size'] > 1)}, global batch {event['global_batch']}, "
        f"{event['num_workers']} loader workers a rank, {event['train_samples']:,} training and "
        f"{event['val_samples']:,} validation samples\nrun folder: {event['run']}"
    )


def progress_line(event: Event) -> str:
    return (
        f"epoch {event['epoch']} {event['share_of_epoch']:4.0%}  loss {event['loss']:.4f}  "
        f"{event['samples_per_s']:,.0f} samples/s  wait {event['wait_fraction']:.1%}  "
        f"ETA {duration(event['eta_s'])}"
    )


def epoch_line(event: Event) -> str:
    accuracy = ""
    if event["top1"] is not None:
        accuracy = f"  top-1 {event['top1']:.2%}  top-5 {event['top5']:.2%}  val loss {event['val_loss']:.4f}"
    return (
        f"epoch {event['epoch']}: loss {event['train_loss']:.4f}{accuracy}  "
        f"{event['samples_per_s']:,.0f} samples/s  wait {event['wait_fraction']:.1%}  {duration(event['seconds'])}"
    )


def summary(event: Event) -> str:
    """What cluster users know from `seff`, and what the run reached."""
    lines = [
        f"{'samples':<22}{sum(epoch['samples'] for epoch in event['epochs']):,} in {event['steps']:,} steps",
        f"{'wall time':<22}{duration(event['train_s'])}"
        f" ({duration(event['without_checkpoints_s'])} without writing checkpoints)",
        f"{'CPU efficiency':<22}{event['cpu_efficiency']:.1%} of {duration(event['core_s'])} core-walltime",
        f"{'memory, peak':<22}{event['peak_memory_bytes'] / 2**20:,.0f} MiB",
    ]
    if event.get("gpu_memory_bytes"):
        lines.append(f"{'GPU memory, peak':<22}{event['gpu_memory_bytes'] / 2**20:,.0f} MiB")
    lines += [gpu_line(gpu) for gpu in event.get("gpus", [])]
    if event["best_top1"] is not None:
        lines.append(f"{'best top-1':<22}{event['best_top1']:.2%}")
    if event["time_to_target_s"] is not None:
        lines.append(f"{'time to target':<22}{event['time_to_target_s']:.1f} s")
    return "\n".join([*lines, f"{'run folder':<22}{event['run']}"])


def gpu_line(gpu: dict[str, Any]) -> str:
    """Each number with its meaning: `utilization` is not how busy the GPU is."""
    known = {
        "SM active": gpu.get("sm_active"),
        "SM occupancy": gpu.get("sm_occupancy"),
        "time with a kernel running": gpu.get("utilization"),
    }
    shares = ", ".join(f"{name} {share:.1%}" for name, share in known.items() if share is not None)
    return f"{'GPU ' + str(gpu.get('index') or 0):<22}{gpu.get('name') or gpu['uuid']}: {shares or 'no figures'}"


def class_table(classes: list[dict[str, Any]], most: int = 20) -> str:
    """The classes that fare worst first."""
    rated = sorted((one for one in classes if one["samples"]), key=lambda one: (one["top1"], one["name"]))
    rows = [
        f"{one['name'][:30]:<32}{one['samples']:>8,}{one['top1']:>9.1%}{one['top5']:>9.1%}" for one in rated[:most]
    ]
    if len(rated) > most:
        rows.append(f"… and {len(rated) - most} classes that do better (all of them are in metrics.jsonl)")
    return "\n".join([f"{'class':<32}{'samples':>8}{'top-1':>9}{'top-5':>9}", *rows])


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"
