"""LitData's `optimize` with its own workers; the time of a run over one image per worker is taken for its start."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from pathlib import Path

from litdata import optimize
from prepare_protocol import image_files, resized_jpeg, serve


def one(item):
    image, label = resized_jpeg(tuple(item))
    return {"image": image, "label": label}


def run(files, out: str, processes: int) -> None:
    optimize(fn=one, inputs=[list(item) for item in files], output_dir=out, chunk_bytes="64MB", num_workers=processes)


def prepare(source: str, out: str, processes: int):
    files = image_files(source)
    yield "start"
    run(files[:processes], out + "-start", processes)
    yield "ready"
    run(files, out, processes)
    yield sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())


if __name__ == "__main__":
    serve(prepare)
