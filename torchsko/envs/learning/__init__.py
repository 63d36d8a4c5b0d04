"""Policy learning on environments: SHAC and APG by gradients through the simulation, PPO without them."""
