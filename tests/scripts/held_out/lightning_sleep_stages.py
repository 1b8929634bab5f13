"""Score sleep stages from one EEG channel with Lightning, and follow training by a full board of TorchMetrics."""

import argparse

import lightning as L
import torch
import torchmetrics.classification as tm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

from stopwatch import lap, timed

STAGES, RATE, SECONDS, NIGHTS = 5, 50, 30, 4000


def make_nights() -> TensorDataset:
    """Half-minute pieces of EEG: each stage has its own mix of slow waves, spindles and fast activity."""
    torch.manual_seed(17)
    stages = torch.randint(STAGES, (NIGHTS,))
    times = torch.arange(RATE * SECONDS) / RATE
    rhythm = torch.tensor([10.0, 6.0, 13.0, 1.5, 4.5])[stages] + torch.rand(NIGHTS)
    height = torch.tensor([0.6, 0.5, 0.8, 2.0, 0.5])[stages]
    waves = height[:, None] * torch.sin(2 * torch.pi * rhythm[:, None] * times + 6 * torch.rand(NIGHTS, 1))
    return TensorDataset((waves + torch.randn(waves.shape)).unsqueeze(1), stages)


def make_board() -> MetricCollection:
    """All that the sleep clinic asks for, of each batch and of the epoch so far."""
    board = {}
    for average in ("micro", "macro", "weighted"):
        board |= {
            f"accuracy_{average}": tm.MulticlassAccuracy(STAGES, average=average),
            f"f1_{average}": tm.MulticlassF1Score(STAGES, average=average),
            f"recall_{average}": tm.MulticlassRecall(STAGES, average=average),
            f"specificity_{average}": tm.MulticlassSpecificity(STAGES, average=average),
        }
    board |= {
        "kappa": tm.MulticlassCohenKappa(STAGES),
        "matthews": tm.MulticlassMatthewsCorrCoef(STAGES),
        "jaccard": tm.MulticlassJaccardIndex(STAGES),
        "auroc": tm.MulticlassAUROC(STAGES, thresholds=40),
        "precision_curve": tm.MulticlassAveragePrecision(STAGES, thresholds=40),
        "hinge": tm.MulticlassHingeLoss(STAGES),
        "top2": tm.MulticlassAccuracy(STAGES, top_k=2),
    }
    return MetricCollection(board, compute_groups=False)


class LapLoader:
    """A loader whose waits are timed."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self):
        return timed(self.loader, "wait")


class StageNet(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers, inputs = [], 1
        for outputs, width, stride in ((16, 25, 5), (32, 9, 3), (48, 5, 2)):
            layers += [nn.Conv1d(inputs, outputs, width, stride, width // 2), nn.BatchNorm1d(outputs), nn.ReLU()]
            inputs = outputs
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(inputs, STAGES))
        self.board = make_board()

    def on_train_batch_start(self, batch, batch_idx):
        self.running = lap("compute")
        self.running.__enter__()

    def training_step(self, batch, batch_idx):
        waves, stages = batch
        scores = self.net(waves)
        return {"loss": nn.functional.cross_entropy(scores, stages), "scores": scores.detach()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.running.__exit__(None, None, None)
        with lap("own"):
            self.score_batch(outputs["scores"], batch[1])

    def score_batch(self, scores: torch.Tensor, stages: torch.Tensor) -> None:
        self.log_dict(self.board(scores.softmax(1), stages), on_step=True, on_epoch=False)

    def on_train_epoch_end(self) -> None:
        totals = {name: round(float(value), 3) for name, value in self.board.compute().items()}
        self.board.reset()
        print(f"epoch {self.current_epoch}: kappa {totals['kappa']}, F1 {totals['f1_macro']}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the nights are made up here)")
    parser.add_argument("--epochs", type=int, default=2000)
    options = parser.parse_args()
    nights = make_nights()
    loader = DataLoader(nights, batch_size=64, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(StageNet(), LapLoader(loader))


if __name__ == "__main__":
    main()
