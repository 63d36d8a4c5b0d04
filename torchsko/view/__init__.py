"""Pictures of models, robots and their motions; the page in a browser is `torchsko.view.page`."""

from torchsko.view.picture import animate as animate
from torchsko.view.picture import picture as picture
from torchsko.view.scene import scene_of as scene_of
