"""Public names of `torchsko.algebra`, which `torchsko/algebra/__init__.py` reads."""

from torchsko.algebra.operators.model import SKOModel as SKOModel
from torchsko.algebra.recursions.innovations import Innovations as Innovations
from torchsko.algebra.theory.member_length import member_length_matrix as member_length_matrix
from torchsko.algebra.theory.member_length import member_length_operator as member_length_operator
from torchsko.algebra.theory.partition import partition as partition
from torchsko.algebra.theory.path_induced import path_induced_nodes as path_induced_nodes
from torchsko.algebra.theory.transform import aggregate as aggregate
from torchsko.algebra.theory.transform import aggregate_segments as aggregate_segments
from torchsko.algebra.theory.transform import embed as embed
from torchsko.algebra.topology.subgraph import aggregation_subgraph as aggregation_subgraph
from torchsko.algebra.topology.tree import Tree as Tree
