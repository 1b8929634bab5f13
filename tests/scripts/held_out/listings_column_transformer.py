"""Accelerate: what a flat costs, from its listing: a thumbnail and a row of a table. The table goes through the
ColumnTransformer that the colleagues' gradient boosting has, so that both models see the same columns."""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, QuantileTransformer, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


def make_table(files, seed=72):
    """Rooms, area and all that: made up, but with gaps and long tails as in a real export."""
    rng = np.random.default_rng(seed)
    count = len(files)
    table = pd.DataFrame(
        {
            "area": rng.lognormal(4, 0.5, count),
            "rooms": rng.integers(1, 7, count).astype(float),
            "floor": rng.integers(0, 12, count).astype(float),
            "year": rng.integers(1890, 2024, count).astype(float),
            "fee": rng.gamma(2, 90, count),
            "heating": rng.choice(["gas", "oil", "district", "pump"], count),
            "energy": rng.choice(list("ABCDEFG"), count),
            "district": [file.parent.name for file in files],
        }
    )
    table["price"] = 11 + 0.6 * np.log(table["area"]) + 0.05 * table["rooms"] + 0.1 * rng.standard_normal(count)
    for column in ("fee", "year", "energy"):
        table.loc[rng.random(count) < 0.1, column] = np.nan
    return table


def make_columns():
    plain = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    skewed = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), QuantileTransformer(n_quantiles=200))
    bins = make_pipeline(SimpleImputer(strategy="most_frequent"), KBinsDiscretizer(8, encode="onehot-dense"))
    kinds = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )
    return ColumnTransformer(
        [
            ("plain", plain, ["rooms", "floor"]),
            ("skewed", skewed, ["area", "fee"]),
            ("bins", bins, ["year"]),
            ("kinds", kinds, ["heating", "energy", "district"]),
        ]
    )


class Listings(Dataset):
    def __init__(self, table, columns, thumbnails):
        self.table, self.columns, self.thumbnails = table, columns, thumbnails

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        with lap("columns"):
            row = self.columns.transform(self.table.iloc[[index]])
        return {
            "row": torch.from_numpy(row[0].astype(np.float32)),
            "image": self.thumbnails[index],
            "price": torch.tensor(self.table["price"].iat[index], dtype=torch.float32),
        }


def thumbnail(file, side=40):
    image = Image.open(file)
    image.draft("RGB", (side, side))
    return torch.from_numpy(np.array(image.convert("RGB").resize((side, side)))).permute(2, 0, 1).contiguous()


class Appraiser(nn.Module):
    def __init__(self, columns, width=64):
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, width, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.read = nn.Sequential(nn.Linear(columns, width), nn.ReLU())
        self.price = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, image, row):
        return self.price(torch.cat([self.look(image.float() / 255), self.read(row)], 1))[:, 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/listings_column_transformer"))
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    files = sorted((args.data / "photos").glob("*/*.JPEG"))[::4]
    table, columns = make_table(files), make_columns()
    width = columns.fit_transform(table).shape[1]
    listings = Listings(table, columns, [thumbnail(file) for file in files])
    loader = DataLoader(listings, batch_size=24, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    model = Appraiser(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for batch in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.huber_loss(model(batch["image"], batch["row"]), batch["price"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        accelerator.save_model(model, str(args.out))


if __name__ == "__main__":
    main()
