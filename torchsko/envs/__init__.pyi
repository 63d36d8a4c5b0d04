"""Public names of `torchsko.envs`, which `torchsko/envs/__init__.py` reads."""

from torchsko.envs import blocks as blocks
from torchsko.envs.environment import Environment as Environment
from torchsko.envs.environment import EnvState as EnvState
from torchsko.envs.environment import Transition as Transition
from torchsko.envs.environment import detached as detached
from torchsko.envs.gymnasium import GymnasiumVectorEnv as GymnasiumVectorEnv
from torchsko.envs.learning.evaluation import evaluate as evaluate
from torchsko.envs.learning.evaluation import evaluate_in_mujoco as evaluate_in_mujoco
from torchsko.envs.learning.policy import Policy as Policy
from torchsko.envs.learning.ppo import PPO as PPO
from torchsko.envs.learning.run_folder import load_policy as load_policy
from torchsko.envs.learning.shac import APG as APG
from torchsko.envs.learning.shac import SHAC as SHAC
from torchsko.envs.learning.training import train as train
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
