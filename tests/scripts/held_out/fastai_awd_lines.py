"fastai: an AWD-LSTM language model of Python's standard library, token by token, with fastai's own loader for texts."

import argparse
import io
import math
import sysconfig
import tokenize
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import torch
from fastai.callback.core import Callback
from fastai.callback.progress import CSVLogger, ProgressCallback
from fastai.callback.rnn import rnn_cbs
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import Perplexity, accuracy
from fastai.text.data import LMDataLoader
from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_lm_config
from fastai.text.models.core import get_language_model

from stopwatch import lap


def tokens_of(file):
    "Tokens as strings, long literals and comments by their kind only"
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(file.read_text(errors="ignore")).readline):
            kind = tokenize.tok_name[token.type]
            found.append(token.string if kind in ("NAME", "OP") else f"<{kind}>")
    except (tokenize.TokenError, SyntaxError, IndentationError):
        pass
    return found


class Vocabulary:
    def __init__(self, texts, largest):
        counts = Counter(token for text in texts for token in text)
        self.words = ["<unknown>", *(word for word, _ in counts.most_common(largest - 1))]
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def __call__(self, text):
        return torch.tensor([self.numbers.get(token, 0) for token in text])


class Laps(Callback):
    order, stack = 80, ExitStack()

    def turn(self, name=None):
        self.stack.close()
        if name and self.training:
            self.stack.enter_context(lap(name))

    def before_batch(self):
        self.turn("compute")

    def after_step(self):
        self.turn("own")

    def after_batch(self):
        self.turn("wait")

    def after_train(self):
        self.turn()


class Surprises(Callback):
    "Which words the model finds hardest, by a running mean over all batches"

    def __init__(self, file, words, every=20):
        self.file, self.words, self.every = file, words, every

    def before_fit(self):
        self.bits = torch.zeros(len(self.words))
        self.seen = torch.zeros(len(self.words))

    def after_step(self):
        with torch.no_grad():
            targets = self.yb[0].flatten()
            picked = self.pred.detach().flatten(0, 1).log_softmax(1).gather(1, targets[:, None])[:, 0]
            self.bits.index_add_(0, targets, -picked / math.log(2))
            self.seen.index_add_(0, targets, torch.ones_like(picked))
        if self.iter % self.every == 0:
            hardest = (self.bits / self.seen.clamp(min=1)).topk(40)
            rows = (
                f"{self.words[n]}\t{value:.2f}" for value, n in zip(hardest.values.tolist(), hardest.indices.tolist())
            )
            self.file.write_text("\n".join(rows) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="not used")
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_awd_lines"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--bs", type=int, default=16)
    parser.add_argument("--window", type=int, default=40)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    torch.set_num_threads(1)

    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:110]
    texts = [text for text in map(tokens_of, files) if len(text) > args.window]
    vocabulary = Vocabulary(texts, largest=1500)
    numbered = [(vocabulary(text),) for text in texts]
    train = LMDataLoader(numbered[6:], bs=args.bs, seq_len=args.window, shuffle=True)
    valid = LMDataLoader(numbered[:6], bs=args.bs, seq_len=args.window)
    loaders = DataLoaders(train, valid, device=torch.device("cpu"))
    config = {**awd_lstm_lm_config, "emb_sz": 128, "n_hid": 256, "n_layers": 3}
    model = get_language_model(AWD_LSTM, len(vocabulary.words), config=config, drop_mult=0.4)
    learner = Learner(
        loaders, model, CrossEntropyLossFlat(), path=args.out, metrics=[accuracy, Perplexity()],
        cbs=[*rnn_cbs(alpha=2, beta=1), Laps(), Surprises(args.out / "surprises.tsv", vocabulary.words), CSVLogger()],
    )  # fmt: skip
    learner.remove_cb(ProgressCallback)
    learner.fit(args.epochs, 3e-3)
    learner.save("lines")


if __name__ == "__main__":
    main()
