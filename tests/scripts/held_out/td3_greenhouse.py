"""Learn to heat, light and air a simulated greenhouse with TD3, from a replay buffer.

The simulation is plain Python, one greenhouse after the other; each of its steps is followed by two updates.
"""

import argparse
import copy
import math
import random

import torch
from torch import nn

from stopwatch import lap

SENSES, LEVERS, HOUSES, ROUND = 7, 3, 4, 250
CAPACITY, BATCH, UPDATES = 50_000, 256, 2


class Greenhouse:
    """Temperature, humidity, light, carbon dioxide and the crop's growth, in steps of ten minutes."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.reset()

    def reset(self) -> list[float]:
        self.hour, self.air, self.damp = self.draw.uniform(0, 24), 18.0, 0.6
        self.carbon, self.crop, self.cloud = 0.5, 0.1, self.draw.random()
        return self.senses()

    def senses(self) -> list[float]:
        angle = 2 * math.pi * self.hour / 24
        return [math.sin(angle), math.cos(angle), self.air / 30, self.damp, self.carbon, self.crop, self.cloud]

    def act(self, heat: float, lamps: float, vents: float) -> tuple[list[float], float, bool]:
        sun = max(0.0, math.sin(2 * math.pi * (self.hour - 6) / 24)) * (1 - 0.7 * self.cloud)
        outside = 8 + 8 * sun
        vents = (vents + 1) / 2
        light = sun + 0.4 * (lamps + 1)
        self.air += 0.8 * (heat + 1) + 1.5 * sun + 0.3 * (lamps + 1) - (0.05 + 0.2 * vents) * (self.air - outside)
        self.damp += 0.02 * self.crop + 0.01 - 0.05 * vents * self.damp
        self.carbon += 0.1 * vents * (1 - self.carbon) - 0.04 * light * self.carbon
        comfort = math.exp(-(((self.air - 23) / 6) ** 2)) * math.exp(-(((self.damp - 0.7) / 0.25) ** 2))
        growth = 0.02 * light * comfort * self.carbon
        self.crop = min(1.0, self.crop + growth)
        self.cloud = min(1.0, max(0.0, self.cloud + self.draw.gauss(0, 0.05)))
        self.hour = (self.hour + 1 / 6) % 24
        cost = 0.004 * (heat + 1) + 0.003 * (lamps + 1)
        return self.senses(), 50 * growth - cost, self.crop >= 1.0


class Replay:
    """All transitions in one tensor, the oldest overwritten."""

    def __init__(self) -> None:
        self.rows = torch.empty(CAPACITY, 2 * SENSES + LEVERS + 2)
        self.place = self.filled = 0

    def add(self, before, levers, reward, after, ended) -> None:
        self.rows[self.place] = torch.tensor([*before, *levers, reward, *after, float(ended)])
        self.place = (self.place + 1) % CAPACITY
        self.filled = max(self.filled, self.place)

    def sample(self) -> tuple[torch.Tensor, ...]:
        rows = self.rows[torch.randint(self.filled, (BATCH,))]
        return rows.split([SENSES, LEVERS, 1, SENSES, 1], 1)


def layers(inputs: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    hidden = [nn.Linear(inputs, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(512, outputs), *last)


class TD3:
    def __init__(self) -> None:
        self.actor = layers(SENSES, LEVERS, nn.Tanh())
        self.critics = nn.ModuleList(layers(SENSES + LEVERS, 1) for _ in range(2))
        self.actor_slow, self.critics_slow = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), 3e-4)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), 3e-4)
        self.updates = 0

    def update(self, before, levers, reward, after, ended) -> float:
        with torch.no_grad():
            jitter = (torch.randn_like(levers) * 0.2).clamp(-0.5, 0.5)
            planned = torch.cat([after, (self.actor_slow(after) + jitter).clamp(-1, 1)], 1)
            worth = torch.min(*(critic(planned) for critic in self.critics_slow))
            target = reward + 0.99 * (1 - ended) * worth
        pairs = torch.cat([before, levers], 1)
        loss = sum(nn.functional.mse_loss(critic(pairs), target) for critic in self.critics)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        self.updates += 1
        if self.updates % 2 == 0:
            worth = self.critics[0](torch.cat([before, self.actor(before)], 1)).mean()
            self.actor_optimizer.zero_grad()
            (-worth).backward()
            self.actor_optimizer.step()
            for slow, fast in ((self.actor_slow, self.actor), (self.critics_slow, self.critics)):
                torch._foreach_lerp_(list(slow.parameters()), [p.detach() for p in fast.parameters()], 0.005)
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the greenhouse needs none)")
    parser.add_argument("--epochs", type=int, default=2000, help="rounds of 250 steps")
    options = parser.parse_args()
    torch.manual_seed(33)
    agent, replay = TD3(), Replay()
    for slow in (agent.actor_slow, agent.critics_slow):
        slow.requires_grad_(False)
    houses = [Greenhouse(seed) for seed in range(HOUSES)]
    senses = [house.reset() for house in houses]
    for epoch in range(options.epochs):
        gained, loss = 0.0, math.nan
        for _ in range(ROUND):
            with lap("own"):
                with torch.no_grad():
                    chosen = agent.actor(torch.tensor(senses)) + 0.15 * torch.randn(HOUSES, LEVERS)
                for number, levers in enumerate(chosen.clamp(-1, 1).tolist()):
                    after, reward, ended = houses[number].act(*levers)
                    replay.add(senses[number], levers, reward, after, ended)
                    senses[number] = houses[number].reset() if ended else after
                    gained += reward / HOUSES
            for _ in range(UPDATES):
                with lap("wait"):
                    batch = replay.sample()
                with lap("compute"):
                    loss = agent.update(*batch)
        print(f"round {epoch}: gained {gained:.2f}, critic loss {loss:.4f}, {replay.filled} kept", flush=True)


if __name__ == "__main__":
    main()
