"""Accelerate: of which part of a library does a page of documentation tell? Pages are HTML, as crawled; words, headings
and links are told apart, and a small convolutional network reads them."""

import argparse
import importlib
import inspect
import pydoc
import re
import zlib
from pathlib import Path

import torch
from accelerate import Accelerator
from bs4 import BeautifulSoup
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

PARTS = ["argparse", "ast", "asyncio", "collections", "configparser", "ctypes", "datetime", "decimal", "email.message",
         "ftplib", "html.parser", "http.client", "imaplib", "logging", "mailbox", "pathlib", "socket", "subprocess",
         "tarfile", "tempfile", "threading", "unittest", "urllib.request", "xml.dom.minidom"]  # fmt: skip
WORD = re.compile(r"[A-Za-z]{2,}")
BUCKETS = 1 << 13


def crawl():
    """One page for each public class of a part."""
    for label, name in enumerate(PARTS):
        module = importlib.import_module(name)
        for key, thing in inspect.getmembers(module, inspect.isclass):
            if not key.startswith("_") and thing.__module__.startswith(name.split(".")[0]):
                body = pydoc.html.document(thing, key)
                page = pydoc.html.page(key, body)
                if 7_000 < len(page) < 60_000:
                    yield page, label


class Pages(Dataset):
    def __init__(self, pages, length=256):
        self.pages, self.length = pages, length

    def __len__(self):
        return len(self.pages)

    def words(self, page):
        soup = BeautifulSoup(page, "html.parser")
        for tag in soup.find_all(["script", "style", "head"]):
            tag.decompose()
        words = []
        for tag in soup.find_all(["a", "strong", "dt"]):
            words += [(tag.name, word) for word in WORD.findall(tag.get_text(" "))]
        words += [("p", word) for word in WORD.findall(soup.get_text(" "))]
        return words

    def __getitem__(self, index):
        page, label = self.pages[index]
        words = self.words(page)
        start = int(torch.randint(max(1, len(words) - self.length), ()))
        codes = [1 + zlib.crc32(f"{kind}:{word.lower()}".encode()) % (BUCKETS - 1)
                 for kind, word in words[start : start + self.length]]  # fmt: skip
        codes += [0] * (self.length - len(codes))
        return {"words": torch.tensor(codes), "label": label}


class Reader(nn.Module):
    def __init__(self, parts, width=32):
        super().__init__()
        self.embed = nn.EmbeddingBag(BUCKETS, width, mode="mean", padding_idx=0, sparse=False)
        self.head = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * width, parts)
        )

    def forward(self, words):
        return self.head(self.embed(words))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: pages are made of the standard library's documentation")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_page_genres"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(cpu=True)
    pages = Pages(list(crawl()))
    accelerator.print(f"{len(pages)} pages", flush=True)
    loader = DataLoader(pages, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    model = Reader(len(PARTS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, mean = 0, None
    while step < args.steps:
        for batch in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(batch["words"]), batch["label"])
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
            step += 1
            if step % 50 == 0:
                accelerator.print(f"step {step} loss {mean:.4f}", flush=True)
            if step % 500 == 0:
                accelerator.save_model(model, str(args.out))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
