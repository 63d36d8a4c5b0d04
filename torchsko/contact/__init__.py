"""Contact and other soft constraints of MuJoCo, with exact gradients."""
