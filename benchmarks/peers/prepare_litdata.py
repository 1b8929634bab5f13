"""LitData's `optimize` with its own workers; the time of a run over one image per worker is taken for its start."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from litdata import optimize
from peer_protocol import bytes_under, resized_jpeg, serve_preparing


def one(item):
    image, label = resized_jpeg(tuple(item))
    return {"image": image, "label": label}


def run(files, out: str, processes: int) -> None:
    inputs = [[str(path), label] for path, label in files]
    optimize(fn=one, inputs=inputs, output_dir=out, chunk_bytes="64MB", num_workers=processes)


def prepare(files, out: str, processes: int):
    yield "start"
    run(files[:processes], out + "-start", processes)
    yield "ready"
    run(files, out, processes)
    yield bytes_under(out)


if __name__ == "__main__":
    serve_preparing(prepare)
