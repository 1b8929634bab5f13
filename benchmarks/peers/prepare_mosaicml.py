"""MosaicML's MDSWriter fed by a pool: workers read and resize, the writer packs."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from multiprocessing import Pool

from peer_protocol import bytes_under, resized_jpeg, serve_preparing, warm
from streaming import MDSWriter


def prepare(files, out: str, processes: int):
    with Pool(processes) as pool:
        pool.map(warm, range(processes * 4), 1)
        yield "ready"
        columns = {"image": "bytes", "label": "int"}
        with MDSWriter(out=out, columns=columns, size_limit=1 << 26) as writer:
            for image, label in pool.imap(resized_jpeg, files, 16):
                writer.write({"image": image, "label": label})
        yield bytes_under(out)


if __name__ == "__main__":
    serve_preparing(prepare)
