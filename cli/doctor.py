"""`feedline doctor`: what is active on this machine, and how to mend what is not."""

from feedline.cli.common import JsonFile, Record, console


def doctor(json_file: JsonFile = None) -> None:
    """Print what feedline found on this machine: image libraries, torch, GPU, Java, Spark, cores, limits.

    Example: feedline doctor --json doctor.json
    """
    from feedline.cli.checks import examine

    record = Record("doctor", json_file)
    facts = examine()
    for fact in facts:
        console.print(f"{fact.name:<16} {fact.text}", markup=False, soft_wrap=True)
        if fact.remedy:
            console.print(f"{'':<16} -> {fact.remedy}", markup=False, soft_wrap=True)
    record.write(json_file, {fact.key: fact.value for fact in facts})
