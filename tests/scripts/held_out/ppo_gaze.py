"""Reinforcement learning: a gaze wanders over photographs and is paid for detail. PPO, worlds and all in one class."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from stopwatch import lap
from torch import nn
from torch.distributions import Categorical

SIDE, VIEW, STRIDE, MOVES = 96, 32, 6, 24
WAYS = np.array([(0, 0), (-STRIDE, 0), (STRIDE, 0), (0, -STRIDE), (0, STRIDE)])


class Worlds:
    """Many gazes at once, in NumPy: each looks at its own photograph through a small window."""

    def __init__(self, photos: Path, count, each=24, seed=0):
        files = [f for d in sorted(photos.iterdir()) if d.is_dir() for f in sorted(d.iterdir())[:each]]
        self.pictures = np.empty((len(files), SIDE, SIDE, 3), np.uint8)
        for number, file in enumerate(files):
            image = Image.open(file)
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            self.pictures[number] = np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
        grey = self.pictures.mean(3)
        self.detail = np.abs(np.stack([ndimage.gaussian_laplace(picture, 1.5) for picture in grey]))
        self.detail = ndimage.uniform_filter(self.detail, (0, VIEW // 2, VIEW // 2))
        self.detail /= self.detail.mean((1, 2), keepdims=True)
        self.rng, self.count = np.random.default_rng(seed), count
        self.picture = self.rng.integers(len(files), size=count)
        self.place = self.rng.integers(SIDE - VIEW, size=(count, 2))
        self.age = self.rng.integers(MOVES, size=count)

    def look(self):
        span = np.arange(VIEW)
        rows, columns = self.place[:, :1] + span, self.place[:, 1:] + span
        view = self.pictures[self.picture[:, None, None], rows[:, :, None], columns[:, None, :]]
        return torch.from_numpy(view).permute(0, 3, 1, 2).contiguous()

    def step(self, actions):
        self.place = np.clip(self.place + WAYS[actions], 0, SIDE - VIEW)
        centre = self.place + VIEW // 2
        reward = self.detail[self.picture, centre[:, 0], centre[:, 1]] - 1
        self.age += 1
        done = self.age >= MOVES
        self.picture[done] = self.rng.integers(len(self.pictures), size=done.sum())
        self.place[done] = self.rng.integers(SIDE - VIEW, size=(done.sum(), 2))
        self.age[done] = 0
        return reward.astype(np.float32), done.astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(2 * width, 3 * width, 3, padding=1), nn.ReLU(),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48 * width, 128), nn.ReLU(),
        )  # fmt: skip
        self.policy, self.value = nn.Linear(128, len(WAYS)), nn.Linear(128, 1)

    def forward(self, views):
        seen = self.eye(views.float() / 255)
        return Categorical(logits=self.policy(seen)), self.value(seen).squeeze(-1)


class PPO:
    def __init__(self, worlds, horizon=12, rounds=3, size=96, gamma=0.95, trace=0.9, clip=0.2):
        self.worlds, self.horizon, self.rounds, self.size = worlds, horizon, rounds, size
        self.gamma, self.trace, self.clip = gamma, trace, clip
        self.agent = ActorCritic()
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=5e-4)

    @torch.no_grad()
    def rollout(self):
        """What the gazes saw, did and got over some moves, with the advantages of what they did."""
        views, actions, chances, values, rewards, ends = [], [], [], [], [], []
        for _ in range(self.horizon):
            with lap("own"):
                views.append(self.worlds.look())
            with lap("compute"):
                policy, value = self.agent(views[-1])
                action = policy.sample()
                chances.append(policy.log_prob(action))
            with lap("own"):
                reward, done = self.worlds.step(action.numpy())
            actions.append(action)
            values.append(value)
            rewards.append(torch.from_numpy(reward))
            ends.append(torch.from_numpy(done))
        with lap("compute"):
            after = self.agent(self.worlds.look())[1]
        advantages, running = [], torch.zeros_like(after)
        for reward, value, end in zip(rewards[::-1], values[::-1], ends[::-1]):
            delta = reward + self.gamma * after * (1 - end) - value
            running = delta + self.gamma * self.trace * (1 - end) * running
            advantages.append(running)
            after = value
        advantages, values = torch.cat(advantages[::-1]), torch.cat(values)
        memory = torch.cat(views), torch.cat(actions), torch.cat(chances), advantages, advantages + values
        return memory, torch.cat(rewards)

    def update(self, views, actions, chances, advantages, returns):
        policy, values = self.agent(views)
        ratio = (policy.log_prob(actions) - chances).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        gain = torch.min(ratio * advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * advantages).mean()
        loss = -gain + 0.5 * nn.functional.mse_loss(values, returns) - 0.01 * policy.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
        self.optimizer.step()

    def run(self, epochs):
        for epoch in range(epochs):
            memory, rewards = self.rollout()
            for _ in range(self.rounds):
                for rows in torch.randperm(len(rewards)).split(self.size):
                    with lap("wait"):
                        part = [tensor[rows] for tensor in memory]
                    with lap("compute"):
                        self.update(*part)
            print(f"epoch {epoch}: reward {rewards.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ppo_gaze"))
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    ppo = PPO(Worlds(options.data / "photos", count=48))
    ppo.run(options.epochs)
    torch.save(ppo.agent.state_dict(), options.out / "gaze.pt")
