"""C++ and CUDA source of a program."""
