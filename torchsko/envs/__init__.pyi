"""Public names of `torchsko.envs`, which `torchsko/envs/__init__.py` reads."""

from torchsko.envs.environment import Environment as Environment
from torchsko.envs.environment import EnvState as EnvState
from torchsko.envs.environment import Transition as Transition
from torchsko.envs.random_numbers import Draws as Draws
from torchsko.envs.registry import make as make
from torchsko.envs.registry import register as register
from torchsko.envs.registry import task_names as task_names
from torchsko.envs.task import Step as Step
from torchsko.envs.task import Task as Task
from torchsko.envs.task import World as World
