"""img2dataset over file:// addresses: its own processes, OpenCV, webdataset tars.

The time of a run over one image per process is taken for its start.
"""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from pathlib import Path
from typing import Any

from img2dataset import download
from peer_protocol import jpeg_quality, serve, short_side_px, started_apart


def write(files: list[Any], out: str, processes: int) -> Any:
    def run(files: list[Any], out: str) -> None:
        listing = Path(out + ".txt")
        listing.write_text("".join(f"file://{path}\n" for path, _ in files))
        download(
            url_list=str(listing), output_folder=out, processes_count=processes, thread_count=4,
            image_size=short_side_px(), resize_mode="keep_ratio", resize_only_if_bigger=True,
            encode_quality=jpeg_quality(), output_format="webdataset", input_format="txt",
            number_sample_per_shard=max(len(files) // (4 * processes), 1), enable_wandb=False,
        )  # fmt: skip

    return started_apart(run, files, out, processes)


if __name__ == "__main__":
    serve(write=write)
