"""DQN in sixty-four mazes at once; the mazes are plain Python, their reward is the way saved to the goal."""

import argparse
import copy
import random
from collections import deque
from pathlib import Path

import torch
from torch import nn

from stopwatch import lap

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Maze:
    def __init__(self, rng, size=15, walls=0.28, limit=60, radius=4):
        self.rng, self.size, self.walls, self.limit, self.radius = rng, size, walls, limit, radius
        self.reset()

    def reset(self):
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        while True:
            self.free = {cell for cell in cells if self.rng.random() > self.walls}
            self.position, self.goal = self.rng.sample(sorted(self.free), 2)
            self.left, self.age = self.way(), 0
            if self.left is not None:
                return self.observe()

    def way(self):
        """Steps to the goal, by breadth-first search."""
        queue, seen = deque([(self.position, 0)]), {self.position}
        while queue:
            cell, steps = queue.popleft()
            if cell == self.goal:
                return steps
            for down, right in MOVES:
                other = (cell[0] + down, cell[1] + right)
                if other in self.free and other not in seen:
                    seen.add(other)
                    queue.append((other, steps + 1))
        return None

    def observe(self):
        row, column = self.position
        span = range(-self.radius, self.radius + 1)
        view = [1.0 if (row + y, column + x) in self.free else 0.0 for y in span for x in span]
        goal = [1.0 if (row + y, column + x) == self.goal else 0.0 for y in span for x in span]
        return [*view, *goal, (self.goal[0] - row) / self.size, (self.goal[1] - column) / self.size]

    def step(self, action):
        down, right = MOVES[action]
        target = (self.position[0] + down, self.position[1] + right)
        if target in self.free:
            self.position = target
        left = self.way()
        reward, self.left = 0.1 * (self.left - left) - 0.01, left
        self.age += 1
        if left == 0:
            return self.observe(), reward + 1.0, True
        return self.observe(), reward, self.age >= self.limit


class Replay:
    """A ring of transitions, as tensors."""

    def __init__(self, capacity, features):
        self.states = torch.zeros(capacity, features)
        self.after = torch.zeros(capacity, features)
        self.actions = torch.zeros(capacity, dtype=torch.long)
        self.rewards = torch.zeros(capacity)
        self.done = torch.zeros(capacity)
        self.capacity, self.next, self.full = capacity, 0, False

    def push(self, states, actions, rewards, after, done):
        rows = torch.arange(self.next, self.next + len(states)) % self.capacity
        self.states[rows], self.actions[rows], self.rewards[rows] = states, actions, rewards
        self.after[rows], self.done[rows] = after, done
        self.full = self.full or self.next + len(states) >= self.capacity
        self.next = (self.next + len(states)) % self.capacity

    def sample(self, count):
        rows = torch.randint(self.capacity if self.full else self.next, (count,))
        return self.states[rows], self.actions[rows], self.rewards[rows], self.after[rows], self.done[rows]


class Collector:
    def __init__(self, mazes, replay):
        self.mazes, self.replay = mazes, replay
        self.states = torch.tensor([maze.observe() for maze in mazes])
        self.solved = self.ended = 0

    def collect(self, network, epsilon, steps):
        for _ in range(steps):
            with torch.no_grad():
                actions = network(self.states).argmax(1)
            chance = torch.rand(len(actions)) < epsilon
            actions = torch.where(chance, torch.randint(len(MOVES), actions.shape), actions)
            rows, rewards, ends, following = [], [], [], []
            for maze, action in zip(self.mazes, actions.tolist(), strict=True):
                row, reward, end = maze.step(action)
                rows.append(row)
                rewards.append(reward)
                ends.append(float(end))
                if end:
                    self.ended += 1
                    self.solved += maze.left == 0
                    row = maze.reset()
                following.append(row)
            self.replay.push(self.states, actions, torch.tensor(rewards), torch.tensor(rows), torch.tensor(ends))
            self.states = torch.tensor(following)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", help="not used: the mazes are drawn at random")
    parser.add_argument("--out", type=Path, default=Path("runs/maze_dqn"))
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--mazes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4, help="steps in each maze between two updates")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--gamma", type=float, default=0.97)
    args = parser.parse_args()
    torch.manual_seed(6)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    rng = random.Random(6)
    mazes = [Maze(rng) for _ in range(args.mazes)]
    features = len(mazes[0].observe())
    online = nn.Sequential(
        nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, len(MOVES))
    )
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)
    collector = Collector(mazes, Replay(40_000, features))
    for update in range(1, args.updates + 1):
        with lap("own"):
            collector.collect(online, max(0.05, 1 - update / 1500), args.steps)
        with lap("wait"):
            states, actions, rewards, after, done = collector.replay.sample(args.batch)
        with lap("compute"):
            best = target(after).amax(1)
            guess = online(states).gather(1, actions[:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(guess, rewards + args.gamma * (1 - done) * best)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if update % 100 == 0:
                target.load_state_dict(online.state_dict())
        if update % 50 == 0:
            print(f"update {update}: loss {loss.item():.4f}, {collector.solved}/{collector.ended} solved", flush=True)
            collector.solved = collector.ended = 0
        if update % 1000 == 0:
            torch.save(online.state_dict(), args.out / "dqn.pt")


if __name__ == "__main__":
    main()
