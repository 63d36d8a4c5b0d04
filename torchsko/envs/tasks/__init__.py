"""Tasks, one file each; every class with a name is a task of `torchsko.envs.make`."""
