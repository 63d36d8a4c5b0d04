"""Where a robot shall be, and the forces that bring it there: inverse kinematics and laws of control."""

from torchsko.control.adaptive import Adapted as Adapted
from torchsko.control.adaptive import adaptive_control as adaptive_control
from torchsko.control.contacts import Contact as Contact
from torchsko.control.ilqr import Optimized as Optimized
from torchsko.control.ilqr import ilqr as ilqr
from torchsko.control.impedance import Task as Task
from torchsko.control.impedance import impedance as impedance
from torchsko.control.objectives import Objective as Objective
from torchsko.control.objectives import com_objective as com_objective
from torchsko.control.objectives import frame_objective as frame_objective
from torchsko.control.objectives import posture_objective as posture_objective
from torchsko.control.optimal import OptimalControl as OptimalControl
from torchsko.control.optimal import optimal_control as optimal_control
from torchsko.control.tracking import computed_torque as computed_torque
from torchsko.control.tracking import pd_with_gravity as pd_with_gravity
from torchsko.control.whole_body import Commanded as Commanded
from torchsko.control.whole_body import whole_body_control as whole_body_control
