"""Pictures and animations of robots; `torchsko.view.viser_page` is the page in a browser."""

from torchsko.view.render import animate as animate
from torchsko.view.render import picture as picture
from torchsko.view.scene import scene_of as scene_of
