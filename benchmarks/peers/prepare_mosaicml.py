"""MosaicML's MDSWriter fed by a pool: workers read and resize, the writer packs."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from multiprocessing import Pool
from pathlib import Path

from prepare_protocol import image_files, resized_jpeg, serve, warm
from streaming import MDSWriter


def prepare(source: str, out: str, processes: int):
    files = image_files(source)
    with Pool(processes) as pool:
        pool.map(warm, range(processes * 4), 1)
        yield "ready"
        columns = {"image": "bytes", "label": "int"}
        with MDSWriter(out=out, columns=columns, size_limit=1 << 26) as writer:
            for image, label in pool.imap(resized_jpeg, files, 16):
                writer.write({"image": image, "label": label})
        yield sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())


if __name__ == "__main__":
    serve(prepare)
