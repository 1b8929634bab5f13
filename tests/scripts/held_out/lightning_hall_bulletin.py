"""Lightning: in which church mode is a tune? A page for the screen in the hall and one for phones
show how training goes."""

import argparse
import random
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import torch
from jinja2 import DictLoader, Environment
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from stopwatch import lap

MODES = ("ionian", "dorian", "phrygian", "lydian", "mixolydian", "aeolian", "locrian")
WHOLE = (0, 2, 4, 5, 7, 9, 11)
PAGES = {
    "base.html": """<!doctype html><html><head><meta charset="utf-8"><meta http-equiv="refresh" content="{{ every }}">
<title>{% block title %}{% endblock %}</title></head><body>
{% block body %}{% endblock %}<footer>{{ run }}{% if step %}, step {{ step }}{% endif %}</footer></body></html>""",
    "parts.html": """{% macro share(part, whole) -%}
{%- if whole %}{{ '%.0f'|format(100 * part / whole) }} %{% else %}&ndash;{% endif %}{%- endmacro %}
{% macro cell(value, most) -%}{%- set heat = value / most if most else 0 -%}
<td style="background:{% if heat > 0.66 %}#fa8{% elif heat > 0.33 %}#fec{% else %}#eef{% endif %}">{{ value or 0 }}</td>
{%- endmacro %}
{% macro spark(values, width, height) -%}{%- set top = values|max -%}
<svg width="{{ width }}" height="{{ height }}"><polyline points="
{%- for value in values %}{{ loop.index0 * width // values|length }},
{{- (height * (1 - value / top))|round(1) if top else 0 }} {% endfor %}"/></svg>{%- endmacro %}""",
    "bulletin.html": """{% extends "base.html" %}{% from "parts.html" import share, cell, spark %}
{% block title %}Church modes: {{ '%.3f'|format(losses[-1]) }}{% endblock %}
{% block body %}<h1>{{ modes|length }} modes, {{ '%.4f'|format(losses|sum / losses|length) }}</h1>
{% if losses|length > 2 %}<p>{{ spark(losses, 320, 60) }}</p>{% else %}<p>soon</p>{% endif %}
<table><tr><th></th>{% for mode in modes %}<th>{{ mode[:3]|upper }}</th>{% endfor %}<th>right</th></tr>
{% for row in table %}{% set whole = row|sum %}<tr><th>{{ modes[loop.index0] }}</th>
{% for value in row %}{{ cell(value, whole) }}{% endfor %}<td>{{ share(row[loop.index0], whole) }}</td></tr>{% endfor %}
</table>{% with worst = tunes|sort(attribute='loss', reverse=true)|list %}<ol>{% for tune in worst[:5] %}
<li>{{ tune.mode|e }}, heard as {{ tune.heard|e }}{% if tune.loss > 3 %} <b>by far</b>{% endif %}</li>{% endfor %}</ol>
{% endwith %}{% endblock %}""",
    "phone.html": """{% extends "base.html" %}{% from "parts.html" import share, spark %}
{% block title %}{{ step }}{% endblock %}{% block body %}<p>{{ spark(losses[-40:], 160, 40) }}</p>
<dl>{% for row in table %}{% set right = row[loop.index0] %}<dt>{{ modes[loop.index0] }}</dt>
<dd>{{ share(right, row|sum) }}</dd>{% endfor %}</dl>{% set far = tunes|selectattr('loss', 'gt', 3)|list %}{% if far %}
<p>{{ far|length }} by far: {{ far|map(attribute='mode')|unique|join(', ') }}</p>{% endif %}{% endblock %}""",
}


def tunes(count, length=40):
    rng, rows = random.Random(8), []
    for number in range(count):
        label = number % len(MODES)
        scale = [(WHOLE[(label + k) % 7] - WHOLE[label]) % 12 for k in range(7)]
        tonic, place, row = rng.randrange(12), 0, []
        for n in range(length):
            place = 0 if n % 8 == 0 else place + rng.choice((-2, -1, -1, 1, 1, 2))
            row.append((tonic + scale[place % 7]) % 12 + 12 * (place // 7 % 2))
        rows.append(row)
    return TensorDataset(torch.tensor(rows), torch.arange(count) % len(MODES))


class Listener(L.LightningModule):
    def __init__(self, width=48):
        super().__init__()
        self.notes = nn.Embedding(24, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(MODES))

    def training_step(self, batch, index):
        scores = self.head(self.body(self.notes(batch[0]))[0].mean(1))
        losses = nn.functional.cross_entropy(scores, batch[1], reduction="none")
        return {"loss": losses.mean(), "losses": losses.detach(), "heard": scores.detach().argmax(1)}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


class Bulletin(L.Callback):
    def __init__(self, folder):
        self.folder, self.losses, self.stack = folder, deque(maxlen=200), ExitStack()
        self.table = [[0] * len(MODES) for _ in MODES]

    def page(self, name, facts):
        pages = Environment(loader=DictLoader(PAGES), trim_blocks=True)
        (self.folder / name).write_text(pages.get_template(name).render(every=5, modes=MODES, **facts))

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_train_batch_start(self, trainer, module, batch, index):
        self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.turn("own")
        self.losses.append(outputs["loss"].item())
        missed = []
        for a, b, loss in zip(batch[1].tolist(), outputs["heard"].tolist(), outputs["losses"].tolist()):
            self.table[a][b] += 1
            missed.append({"mode": MODES[a], "heard": MODES[b], "loss": loss})
        facts = {"losses": list(self.losses), "table": self.table, "tunes": missed}
        for name in ("bulletin.html", "phone.html"):
            self.page(name, facts | {"run": "Listener", "step": trainer.global_step})
        if trainer.global_step % 25 == 0:
            print(f"step {trainer.global_step}: loss {self.losses[-1]:.4f}", flush=True)
        self.turn("wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the tunes are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_hall_bulletin"))
    parser.add_argument("--epochs", type=int, default=300)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    L.seed_everything(8, verbose=False)
    torch.set_num_threads(1)
    data = tunes(5000)
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 40, drop_last=True))
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, callbacks=[Bulletin(args.out)],
        logger=False, default_root_dir=args.out, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Listener(), loader)


if __name__ == "__main__":
    main()
