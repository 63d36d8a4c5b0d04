"""Train the hopper of Gymnasium by SHAC, and test the policy in MuJoCo.

The same from a shell: python -m torchsko train Hopper-v5 --out DIR --seed 1 --minutes 5. The folder has the
policy, its learning curve, an animation, and a program that runs it with NumPy and MuJoCo alone. Needs
pip install ".[envs,view]".
"""

import json

from command_line import parse_options

import torchsko as ts


def main():
    args = parse_options(
        __doc__, task="Hopper-v5", minutes=5.0, updates=(0, "instead of minutes"), envs=64, seed=1
    )
    limit = {"updates": args.updates} if args.updates else {"minutes": args.minutes}
    folder = args.out / f"{args.task}-{args.seed}"
    ts.envs.train(args.task, out=folder, seed=args.seed, num_envs=args.envs, resume=True, **limit)
    policy = ts.envs.load_policy(folder)

    env = ts.envs.make(args.task, num_envs=32, seed=100)
    found = ts.envs.evaluate(env, policy, starts=32, seed=100)
    (there,) = ts.envs.evaluate_in_mujoco(env, policy, starts=5, seed=100)
    report = json.loads((folder / "report.json").read_text())
    print(
        f"return {found.total.mean():.1f} here, {there.total.mean():.1f} in MuJoCo, from other starts; "
        f"{report['mujoco']['mass * 1.2']['mean']:.1f} with 1.2 times the mass"
    )


if __name__ == "__main__":
    main()
