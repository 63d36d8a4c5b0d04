"""Public names of `torchsko.envs.blocks`, which `torchsko/envs/blocks/__init__.py` reads."""

from torchsko.envs.blocks.actions import delayed as delayed
from torchsko.envs.blocks.actions import scaled as scaled
from torchsko.envs.blocks.disturbances import occasional as occasional
from torchsko.envs.blocks.disturbances import push as push
from torchsko.envs.blocks.observations import air_time as air_time
from torchsko.envs.blocks.observations import appended as appended
from torchsko.envs.blocks.observations import base_velocity as base_velocity
from torchsko.envs.blocks.observations import link_forces as link_forces
from torchsko.envs.blocks.observations import projected_gravity as projected_gravity
from torchsko.envs.blocks.rewards import pseudo_huber as pseudo_huber
from torchsko.envs.blocks.rewards import tolerance as tolerance
from torchsko.envs.blocks.terrain import height_scan as height_scan
from torchsko.envs.blocks.terrain import terrain_heights as terrain_heights
from torchsko.envs.blocks.terrain import waves as waves
