"""Control laws, optimal control and inverse kinematics."""

from torchsko.control.ik.axis_goal import AxisGoal as AxisGoal
from torchsko.control.ik.center_of_mass_goal import CenterOfMassGoal as CenterOfMassGoal
from torchsko.control.ik.frame_goal import FrameGoal as FrameGoal
from torchsko.control.ik.goal import Goal as Goal
from torchsko.control.ik.levenberg_marquardt import IKResult as IKResult
from torchsko.control.ik.look_at_goal import LookAtGoal as LookAtGoal
from torchsko.control.ik.posture_goal import PostureGoal as PostureGoal
from torchsko.control.ilqr.problem import OptimalControl as OptimalControl
from torchsko.control.ilqr.problem import optimal_control as optimal_control
from torchsko.control.ilqr.segments import Phase as Phase
from torchsko.control.ilqr.solver import ILQRResult as ILQRResult
from torchsko.control.ilqr.solver import ilqr as ilqr
from torchsko.control.joint_space.adaptive_control import AdaptiveResult as AdaptiveResult
from torchsko.control.joint_space.adaptive_control import adaptive_control as adaptive_control
from torchsko.control.joint_space.tracking import computed_torque as computed_torque
from torchsko.control.joint_space.tracking import pd_with_gravity as pd_with_gravity
from torchsko.control.task_space.contacts import Contact as Contact
from torchsko.control.task_space.contacts import SurfaceContact as SurfaceContact
from torchsko.control.task_space.impedance import Task as Task
from torchsko.control.task_space.impedance import impedance as impedance
from torchsko.control.task_space.objectives import Objective as Objective
from torchsko.control.task_space.objectives import com_objective as com_objective
from torchsko.control.task_space.objectives import frame_objective as frame_objective
from torchsko.control.task_space.objectives import posture_objective as posture_objective
from torchsko.control.task_space.whole_body import WholeBodyResult as WholeBodyResult
from torchsko.control.task_space.whole_body import whole_body_control as whole_body_control
