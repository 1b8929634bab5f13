"""The development kit of a synthetic ImageNet: a real MATLAB `meta.mat` and the ground truth, packed as published.

As in the real one, `ILSVRC2012_ID`s are in no order of wnids, and synsets with children follow the leaves.
"""

import gzip
import io
from collections.abc import Sequence

import numpy as np

from feedline.preprocess.sources.staging import TarWriter
from feedline.preprocess.synth.inventory import Synset, SynthPlan, identifiers_by_name

FOLDER = "ILSVRC2012_devkit_t12"
MAT_TEXT_BYTES = 116
LEAVES_PER_PARENT = 4
FIELDS = (
    "ILSVRC2012_ID",
    "WNID",
    "words",
    "gloss",
    "num_children",
    "children",
    "wordnet_height",
    "num_train_images",
)


def devkit_bytes(plan: SynthPlan) -> bytes:
    """ILSVRC2012_devkit_t12.tar.gz, the same bytes each time."""
    truth = "".join(f"{ident}\n" for ident in identifiers_by_name(plan))
    members = {
        f"{FOLDER}/readme.txt": b"A synthetic ImageNet made by `feedline synth`, in the layout of ILSVRC 2012.\n",
        f"{FOLDER}/data/meta.mat": meta_mat(plan.synsets, plan.train_sizes),
        f"{FOLDER}/data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
    }
    packed = io.BytesIO()
    tar = TarWriter(packed)
    for name, data in members.items():
        tar.add(name, data)
    tar.end(0)
    return gzip.compress(packed.getvalue(), mtime=0)


def meta_mat(synsets: Sequence[Synset], train_sizes: Sequence[int]) -> bytes:
    from scipy.io import savemat

    leaves = sorted(zip(synsets, train_sizes, strict=True), key=lambda pair: pair[0].ident)
    rows = [
        (s.ident, s.wnid, s.words, f"a synthetic {s.words.partition(',')[0]}", 0, np.empty(0), 0, size)
        for s, size in leaves
    ]
    idents = [synset.ident for synset, _ in leaves]
    parents = [idents[start : start + LEAVES_PER_PARENT] for start in range(0, len(idents), LEAVES_PER_PARENT)]
    for number, children in enumerate(parents):
        ident = len(leaves) + 1 + number
        # A wnid below and between those of the leaves: whoever forgets `num_children` gets other labels.
        wnid = f"n{int(synsets[number % len(synsets)].wnid[1:]) - 1 - number:08d}"
        rows.append(
            (ident, wnid, f"kind {number + 1}", "a synset above others", len(children), np.array(children), 1, 0)
        )
    table = np.array([tuple(row) for row in rows], dtype=[(name, object) for name in FIELDS])
    buffer = io.BytesIO()
    savemat(buffer, {"synsets": table.reshape(-1, 1)})
    # MATLAB's header says when it was written: that would be another file each time.
    text = b"MATLAB 5.0 MAT-file, Platform: feedline synth, Created on: Thu Jan  1 00:00:00 1970"
    return text.ljust(MAT_TEXT_BYTES) + buffer.getvalue()[MAT_TEXT_BYTES:]
