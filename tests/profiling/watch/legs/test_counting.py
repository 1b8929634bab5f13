"""Frameworks and scripts that count batches themselves: windows are whole, whoever leaves the pass."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.profiling.diagnostic_runs import rates, script, seen

LIGHTNING = """
import lightning.pytorch as pl

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, _):
        time.sleep(0.002)
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])
    def validation_step(self, batch, _):
        open("left", "w").close()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

options = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
trainer = pl.Trainer(max_epochs=2, num_sanity_val_steps=0, **options)
trainer.fit(Module(), DataLoader(data, batch_size=8, num_workers=1), DataLoader(data, batch_size=8))
open("left", "w").close()
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8, num_workers=1))
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()
    time.sleep(0.002)
open("left", "w").close()
"""
IGNITE = """
from ignite.engine import Engine, Events

evaluator = Engine(lambda engine, batch: open("left", "w").close())
trainer = Engine(lambda engine, batch: step(batch))
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(DataLoader(data, batch_size=8)))
trainer.run(DataLoader(data, batch_size=8, num_workers=1), max_epochs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "text"),
    [("lightning.pytorch", LIGHTNING), ("accelerate", ACCELERATE), ("ignite", IGNITE)],
    ids=["lightning", "accelerate", "ignite"],
)
def test_a_framework_is_held_in_its_pass(work: Path, package: str, text: str) -> None:
    pytest.importorskip(package)
    found = seen(script(work, text), lines=True)
    assert rates(found) == {"normal": 2, "cached": 2, "kept": 2}
    assert found.lines
    assert not (work / "left").exists()
    assert not [note for note in found.notes if "legs" in note]


TRANSFORMERS = """
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def forward(self, x, labels):
        time.sleep(0.002)
        return {"loss": nn.functional.cross_entropy(self.linear(x), labels)}
net = Net()
net.linear = model
rows = [{"x": x, "labels": int(y)} for x, y in data]
options = dict(per_device_train_batch_size=8, report_to="none", use_cpu=True, disable_tqdm=True)
arguments = TrainingArguments("out", num_train_epochs=2, save_strategy="epoch", **options)
Trainer(net, arguments, train_dataset=rows).train()
open("left", "w").close()
"""
SAVING = """
import atexit, json
from transformers import Trainer, TrainerCallback, TrainingArguments

class Net(nn.Module):
    def forward(self, x, labels):
        time.sleep(0.002)
        return {"loss": nn.functional.cross_entropy(self.linear(x), labels)}
class Rates(TrainerCallback):
    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        rates.append(lr_scheduler.get_last_lr()[0])
net, rates = Net(), []
net.linear = model
rows = [{"x": x, "labels": int(y)} for x, y in data]
options = dict(per_device_train_batch_size=8, report_to="none", use_cpu=True, disable_tqdm=True)
arguments = TrainingArguments("out", num_train_epochs=1, save_steps=5, learning_rate=1e-6, **options)
atexit.register(lambda: json.dump([arguments.num_train_epochs, arguments.max_steps, rates], open("told", "w")))
Trainer(net, arguments, train_dataset=rows, callbacks=[Rates()]).train()
"""


def test_transformers_saves_what_it_would_without_us(work: Path) -> None:
    """Of a training of 20 steps, whose verdict is there after 32."""
    pytest.importorskip("transformers")
    found = seen(script(work, SAVING), steps=32)
    assert rates(found) == {"normal": 2, "cached": 2, "kept": 2}
    assert {path.name for path in (work / "out").iterdir()} == {f"checkpoint-{step}" for step in (5, 10, 15, 20)}
    for step in (5, 20):
        state = json.loads((work / "out" / f"checkpoint-{step}" / "trainer_state.json").read_text())
        assert state["max_steps"] == 20
    epochs, most, learning = json.loads((work / "told").read_text())
    assert (epochs, most) == (1, -1)
    assert learning[0] > 2 * learning[14] > 0  # it is on its way to 0 at the twentieth step


WEBDATASET = """
import webdataset

with webdataset.TarWriter("shard.tar") as sink:
    for number, (x, y) in enumerate(data):
        sink.write({"__key__": f"{number:03d}", "x.pyd": x, "y.cls": int(y)})
samples = webdataset.WebDataset("shard.tar", shardshuffle=False, empty_check=False).repeat().decode()
samples = samples.to_tuple("x.pyd", "y.cls").batched(8)
loader = webdataset.WebLoader(samples, batch_size=None, num_workers=1).with_epoch(12)
for _ in range(1000):
    for batch in loader:
        step(batch)
"""
SLICED = """
import itertools

loader = DataLoader(data, batch_size=8, num_workers=1)
for _ in range(1000):
    for batch in itertools.islice(loader, 9):
        step(batch)
"""
ONE_EACH = """
def train():
    loader = DataLoader(data, batch_size=8)
    for _ in range(100000):
        step(next(iter(loader)))

train()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "text", "window_s"),
    [
        ("transformers", TRANSFORMERS, 0.3),
        ("webdataset", WEBDATASET, 0.1),
        ("torch", SLICED, 0.1),
        ("torch", ONE_EACH, 0.1),
    ],
    ids=["transformers", "webdataset", "islice", "next(iter)"],
)
def test_windows_go_on_in_the_next_pass(work: Path, package: str, text: str, window_s: float) -> None:
    """Of which each is shorter than a window."""
    pytest.importorskip(package)
    found = seen(script(work, text), lines=True, window_s=window_s)
    assert rates(found) == {"normal": 2, "cached": 2, "kept": 2}
    assert found.lines
    assert not (work / "left").exists()
    assert not [note for note in found.notes if "legs" in note]
