"""C++ and CUDA source text of scheduled programs."""
