"""From the first window on no model file changes."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.profiling.diagnostic_runs import rates, script, seen

SAVES = """
import contextlib
from torch import save as store
sys.path.insert(0, ".")

def at_exit():
    store(model.state_dict(), "exit.pt")
    with contextlib.suppress(ImportError):
        from safetensors.torch import save_file
        save_file(model.state_dict(), "exit.safetensors")
    torch.jit.script(model).save("jit.pt")
    os.remove("old.ckpt")
atexit.register(at_exit)
import shutil
atexit.register(shutil.rmtree, "checkpoint-1")

try:
    for batch in DataLoader(data, batch_size=8):
        step(batch)
        if steps > 20:
            store(model.state_dict(), "best.pt")
except BaseException:
    with open("broken.pth", "wb") as file:
        store(model.state_dict(), file)
finally:
    open("result.txt", "w").write("done")
    store(model.state_dict(), "last.tmp")
    os.replace("other.tmp", "last.pt")
"""


def test_no_model_file_changes_from_the_first_leg_to_the_end(work: Path) -> None:
    models = ("exit.pt", "exit.safetensors", "jit.pt", "old.ckpt", "best.pt", "broken.pth", "last.pt", "other.tmp")
    for name in models:
        (work / name).write_bytes(name.encode())
    (work / "checkpoint-1" / "unet").mkdir(parents=True)
    rotated = [work / "checkpoint-1" / name for name in ("config.json", "unet/model.safetensors")]
    for file in rotated:
        file.write_text("{}")
    found = seen(script(work, SAVES))
    assert rates(found)["normal"] == 2
    assert all(file.exists() for file in rotated)
    assert {name: (work / name).read_bytes() for name in models} == {name: name.encode() for name in models}
    assert not (work / "last.tmp").exists()
    assert (work / "result.txt").read_text() == "done"
    assert not [note for note in found.notes if "legs" in note]


def test_a_copy_in_memory_is_made(work: Path) -> None:
    argv = script(
        work,
        """
        import io
        for epoch in range(99):
            for batch in DataLoader(data, batch_size=8):
                step(batch)
                copy = io.BytesIO()
                torch.save(model.state_dict(), copy)
                assert torch.load(io.BytesIO(copy.getvalue()))
        """,
    )
    found = seen(argv)
    assert rates(found)["cached"] == 2 and not [note for note in found.notes if "legs" in note]


LIGHTNING = """
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, _):
        for name in ("broken", "often", "last"):  # Lightning resumes from such a file that is there as it starts
            if not os.path.exists(f"{name}.ckpt"):
                open(f"{name}.ckpt", "w").write(name)
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

often = ModelCheckpoint(".", "often", every_n_train_steps=5, save_last="link", enable_version_counter=False)
callbacks = [OnExceptionCheckpoint(".", "broken"), often]
trainer = pl.Trainer(max_epochs=9999, accelerator="cpu", logger=False, callbacks=callbacks, enable_progress_bar=0)
trainer.fit(Module(), DataLoader(data, batch_size=8))
"""


@pytest.mark.slow
def test_lightnings_checkpoints_stay_as_they_are(work: Path) -> None:
    """One is written when an exception ends the loop, and removed again as the trainer is torn down."""
    pytest.importorskip("lightning.pytorch")
    found = seen(script(work, LIGHTNING), steps=4)
    assert rates(found)["normal"] == 2
    assert {path.stem: path.read_text() for path in work.glob("*.ckpt")} == {
        name: name for name in ("often", "last", "broken")
    }
