"""webdataset's ShardWriter. One process: its documentation's loop. More: fed by a pool that reads and resizes."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from contextlib import nullcontext
from multiprocessing import Pool
from pathlib import Path

from peer_protocol import bytes_under, resized_jpeg, serve_preparing, warm
from webdataset import ShardWriter


def prepare(files, out: str, processes: int):
    Path(out).mkdir()
    with Pool(processes) if processes > 1 else nullcontext() as pool:
        warm(0)
        if pool is not None:
            pool.map(warm, range(processes * 4), 1)
        yield "ready"
        pictures = map(resized_jpeg, files) if pool is None else pool.imap(resized_jpeg, files, 16)
        with ShardWriter(f"{out}/train-%06d.tar", maxsize=1 << 26, verbose=0) as writer:
            for number, (image, label) in enumerate(pictures):
                writer.write({"__key__": f"{number:08d}", "jpg": image, "cls": label})
        yield bytes_under(out)


if __name__ == "__main__":
    serve_preparing(prepare)
