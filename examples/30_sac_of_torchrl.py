"""Soft actor-critic of TorchRL on an environment of torchsko: a cart-pole balances.

Collector, replay buffer and loss are TorchRL's; the environment steps 32 poles in one kernel. Needs
pip install ".[envs,torchrl]".
"""

import torch
from command_line import parse_options
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

import torchsko as ts


def main():
    args = parse_options(__doc__, task="InvertedPendulum-v5", steps=16384, envs=32, seed=0)
    torch.manual_seed(args.seed)
    poles = ts.envs.make(args.task, args.envs, seed=args.seed, dtype=torch.float32)
    env = TransformedEnv(ts.envs.TorchRLEnv(poles), RewardSum())
    spec = env.action_spec_unbatched
    sizes = dict(num_cells=[64, 64], activation_class=nn.Tanh)
    n, m = poles.observation_size, poles.action_size
    net = nn.Sequential(MLP(n, 2 * m, **sizes), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(n + m, 1, **sizes), in_keys=["observation", "action"])
    loss = SACLoss(actor, critic, action_spec=spec)
    loss.make_value_estimator(gamma=0.99)
    target, optimizer = SoftUpdate(loss, tau=0.01), torch.optim.Adam(loss.parameters(), lr=1e-3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(50_000), batch_size=256)
    collector = Collector(env, actor, frames_per_batch=16 * args.envs, total_frames=args.steps)
    returns = []
    for data in collector:
        ended = data["next", "done"]
        returns += data["next", "episode_reward"][ended].tolist()
        buffer.extend(data.exclude(("next", "episode_reward")).reshape(-1))
        for _ in range(48):
            parts = loss(buffer.sample())
            optimizer.zero_grad()
            sum(parts[name] for name in ("loss_actor", "loss_qvalue", "loss_alpha")).backward()
            optimizer.step()
            target.step()
    collector.shutdown()
    print(f"return {sum(returns[:32]) / 32:.0f} at first, {sum(returns[-32:]) / 32:.0f} at the end")


if __name__ == "__main__":
    main()
