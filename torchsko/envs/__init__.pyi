"""Public names of `torchsko.envs`, which `torchsko/envs/__init__.py` reads."""

from torchsko.envs import blocks as blocks
from torchsko.envs.environment import Environment as Environment
from torchsko.envs.environment import EnvState as EnvState
from torchsko.envs.environment import Transition as Transition
from torchsko.envs.environment import detached as detached
from torchsko.envs.gymnasium import GymnasiumVectorEnv as GymnasiumVectorEnv
from torchsko.envs.mujoco_data import Links as Links
from torchsko.envs.random_numbers import Draws as Draws
from torchsko.envs.registry import make as make
from torchsko.envs.registry import register as register
from torchsko.envs.registry import task_names as task_names
from torchsko.envs.sb3 import SB3VecEnv as SB3VecEnv
from torchsko.envs.task import Step as Step
from torchsko.envs.task import Task as Task
from torchsko.envs.task import World as World
from torchsko.envs.torchrl import TorchRLEnv as TorchRLEnv
