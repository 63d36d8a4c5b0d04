"""Where a robot shall be, and the forces that bring it there: inverse kinematics and laws of control."""
