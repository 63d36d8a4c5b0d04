"""A task from a URDF file: a pole on a cart swings up and stays upright.

python examples/26_task_from_urdf.py --out DIR
python -m torchsko train examples/26_task_from_urdf.py:CartPole --out DIR
"""

from dataclasses import dataclass, replace

import torch
from command_line import parse_options

import torchsko as ts
from torchsko.mechanism.file_data.actuator import FileActuators

URDF = """<robot name="cart_pole"><link name="rail"/>
  <link name="cart"><visual><geometry><box size=".3 .2 .1"/></geometry></visual><inertial>
    <mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="pole"><visual><origin xyz="0 0 .3"/><geometry><cylinder radius=".02" length=".6"/></geometry>
    </visual><inertial><origin xyz="0 0 .3"/><mass value=".2"/>
      <inertia ixx=".006" iyy=".006" izz=".0001" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="slide" type="prismatic"><parent link="rail"/><child link="cart"/><axis xyz="1 0 0"/>
    <limit lower="-2" upper="2" effort="20" velocity="10"/><dynamics damping=".1"/></joint>
  <joint name="hinge" type="continuous"><parent link="cart"/><child link="pole"/><axis xyz="0 1 0"/></joint>
</robot>"""


@dataclass(frozen=True)
class CartPole(ts.envs.Task):
    """Swing-up: the reward is one upright at rest in the middle."""

    model: str = URDF
    frame_skip: int = 10  # of 2 ms
    episode_length: int = 250

    def mechanism(self, dtype, device):
        motor = ts.actuators.Actuator.motor("motor", "slide", gear=20.0, control_range=(-1, 1))
        mech = super().mechanism(dtype, device)
        return mech.replace(
            file_metadata=replace(mech.file_metadata, actuators=FileActuators((motor,)))
        )

    def initial(self, world, draw):
        hanging = torch.tensor([0.0, torch.pi], dtype=world.mech.dtype)
        q = hanging + draw.uniform(-0.1, 0.1, 2)
        return world.state_at(q, draw.uniform(-0.1, 0.1, 2))

    def observe(self, world, state, memory):
        x, angle = state.q[:1], state.q[1:]
        return torch.cat([x, angle.cos(), angle.sin(), state.qd])

    def reward(self, world, step):
        x, angle = step.after.q
        return 0.5 * (1 + angle.cos()) - 0.1 * x.square() - 0.01 * step.action.square().sum()


ts.envs.register("CartPole", CartPole)

if __name__ == "__main__":
    args = parse_options(__doc__, updates=400, envs=64)
    ts.envs.train("CartPole", out=args.out / "cart_pole", updates=args.updates, num_envs=args.envs)
