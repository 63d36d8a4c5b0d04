"""Pictures of models, robots and their motions; the page in a browser is `torchsko.view.viser_page`."""

from torchsko.view.render import animate as animate
from torchsko.view.render import picture as picture
from torchsko.view.scene import scene_of as scene_of
