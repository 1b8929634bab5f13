"""`python -m feedline.train.main OUT …`: `feedline train`, as torchrun and kernprof can start it."""

import sys

if __name__ == "__main__":
    from feedline.cli.main import run

    sys.argv.insert(1, "train")
    run()
