"""PPO on a vector environment of Gymnasium: a loop of NumPy arrays, as with any other environment.

Steps are kernels without gradients; the policy is a network of PyTorch. Needs pip install ".[envs]".
"""

import gymnasium
import torch
from command_line import parse_options
from torch.distributions import Normal

import torchsko.envs.gymnasium  # noqa: F401 - registers the tasks

HORIZON, DISCOUNT, DECAY, CLIP = 32, 0.99, 0.95, 0.2


def network(inputs, outputs):
    sizes = torch.nn.Linear(inputs, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, outputs)
    return torch.nn.Sequential(sizes[0], torch.nn.Tanh(), sizes[1], torch.nn.Tanh(), sizes[2])


def main():
    args = parse_options(__doc__, task="InvertedPendulum-v5", updates=60, envs=64, seed=0)
    torch.manual_seed(args.seed)
    envs = gymnasium.make_vec(f"torchsko/{args.task}", num_envs=args.envs, dtype=torch.float32)
    sizes = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
    actor, critic, log_std = network(*sizes), network(sizes[0], 1), torch.zeros(sizes[1])
    weights = [*actor.parameters(), *critic.parameters(), log_std.requires_grad_()]
    optimizer = torch.optim.Adam(weights, lr=1e-3)
    x, lengths = torch.as_tensor(envs.reset(seed=args.seed)[0]), []
    for _ in range(args.updates):
        rows, gain, gains = [], torch.zeros(args.envs), []
        with torch.no_grad():
            for _ in range(HORIZON):
                policy = Normal(actor(x), log_std.exp())
                u = policy.sample()
                after, *flags, info = envs.step(u.numpy())
                r, ended, stopped = map(torch.as_tensor, flags)
                next_value = critic(torch.as_tensor(info["final_obs"]))[:, 0] * ~ended
                log_p = policy.log_prob(u).sum(-1)
                rows.append((x, u, log_p, critic(x)[:, 0], r, next_value, ended | stopped))
                x = torch.as_tensor(after)
            xs, us, old, value, r, last, done = map(torch.stack, zip(*rows, strict=True))
            for k in reversed(range(HORIZON)):  # generalized advantages (Schulman et al. 2016)
                gain = r[k] + DISCOUNT * (last[k] + DECAY * gain * ~done[k]) - value[k]
                gains.insert(0, gain)
            data = [xs, us, old, torch.stack(gains), torch.stack(gains) + value]
            data = [part.flatten(0, 1) for part in data]
        for rows in torch.randperm(HORIZON * args.envs).repeat(4).split(512):
            x_k, u_k, old_k, g, target = (part[rows] for part in data)
            ratio = (Normal(actor(x_k), log_std.exp()).log_prob(u_k).sum(-1) - old_k).exp()
            g = (g - g.mean()) / (g.std() + 1e-6)
            gained = torch.minimum(ratio * g, ratio.clamp(1 - CLIP, 1 + CLIP) * g).mean()
            loss = (critic(x_k)[:, 0] - target).square().mean() / 2 - gained
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        lengths.append(HORIZON * args.envs / max(1, int(done.sum())))
    print(f"steps per episode: {lengths[0]:.0f} at first, {lengths[-1]:.0f} at the end")


if __name__ == "__main__":
    main()
