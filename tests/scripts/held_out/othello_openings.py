"""Predicts the next move of Othello players from the position on the board. Games are kept as transcripts (f5d6c3...), as
the federations publish them; a sample is a position somewhere in a game."""

import argparse
import random
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

COMPASS = [(-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)]


class Board:
    def __init__(self):
        self.squares = {(row, column): 0 for row in range(8) for column in range(8)}
        self.squares[3, 3] = self.squares[4, 4] = -1
        self.squares[3, 4] = self.squares[4, 3] = 1
        self.turn = 1

    def turned(self, square):
        """The discs that a move on this square turns over."""
        if self.squares[square]:
            return []
        found = []
        for down, right in COMPASS:
            line, at = [], (square[0] + down, square[1] + right)
            while self.squares.get(at) == -self.turn:
                line.append(at)
                at = at[0] + down, at[1] + right
            if line and self.squares.get(at) == self.turn:
                found += line
        return found

    def legal(self):
        return [square for square in self.squares if self.turned(square)]

    def play(self, square):
        for disc in [*self.turned(square), square]:
            self.squares[disc] = self.turn
        self.turn = -self.turn
        if not self.legal():
            self.turn = -self.turn


def to_text(square):
    return "abcdefgh"[square[1]] + str(square[0] + 1)


def to_square(text):
    return int(text[1]) - 1, "abcdefgh".index(text[0])


def write_transcripts(path, count):
    """Club players of our own: greedy ones with a taste for corners."""
    with path.open("w") as file:
        for _ in range(count):
            board, moves = Board(), []
            while legal := board.legal():
                taste = [len(board.turned(s)) + 6 * (s[0] in (0, 7) and s[1] in (0, 7)) for s in legal]
                square = random.choices(legal, [t * t for t in taste])[0]
                board.play(square)
                moves.append(to_text(square))
            file.write("".join(moves) + "\n")


class Positions(Dataset):
    def __init__(self, path, length):
        self.games = path.read_text().split()
        self.length = length

    def __len__(self):
        return self.length

    def replay(self, game, ply):
        board = Board()
        for move in (game[at : at + 2] for at in range(0, 2 * ply, 2)):
            square = to_square(move)
            if square not in board.legal():
                raise ValueError(f"{move} is not a move here: {game}")
            board.play(square)
        return board

    def __getitem__(self, index):
        game = self.games[index % len(self.games)]
        ply = random.randrange(2, len(game) // 2)
        with lap("replay"):
            board = self.replay(game, ply)
        discs = torch.tensor(list(board.squares.values())).view(8, 8) * board.turn
        row, column = to_square(game[2 * ply : 2 * ply + 2])
        return torch.stack([discs == 1, discs == -1, discs == 0]).float(), row * 8 + column


class Player(nn.Module):
    def __init__(self, width=48, depth=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.policy = nn.Conv2d(width, 1, 1)

    def forward(self, planes):
        x = self.stem(planes).relu()
        for block in self.blocks:
            x = x + block(x).relu()
        return self.policy(x).flatten(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used, transcripts are played at the start")
    parser.add_argument("--out", type=Path, default=Path("runs/othello_openings"))
    parser.add_argument("--games", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    random.seed(64)
    torch.set_num_threads(1)
    transcripts = args.out / "transcripts.txt"
    write_transcripts(transcripts, args.games)
    loader = DataLoader(
        Positions(transcripts, 6400), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
    )
    player = Player()
    optimizer = torch.optim.Adam(player.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        right = seen = 0
        for planes, moves in timed(loader, "wait"):
            with lap("compute"):
                scores = player(planes)
                loss = nn.functional.cross_entropy(scores, moves)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                right += (scores.argmax(1) == moves).sum().item()
                seen += len(moves)
        print(f"epoch {epoch}: {right / seen:.1%} of {seen} moves guessed", flush=True)
        torch.save(player.state_dict(), args.out / "player.pt")


if __name__ == "__main__":
    main()
