"""Shapes of robots: a file for each, with its sizes, its surface, its rays and its contact with other shapes.

A file has the class of a shape and the functions of the pairs that it forms with the shapes before it in
`torchsko.shapes.registry.SHAPES`. Sizes are half sizes as in MuJoCo: the radius of a sphere; radius and half
length of capsules and cylinders along z; radii of an ellipsoid; half edges of a box; half edges of a height
field along x and y. A plane has the normal z.

Reference: MuJoCo documentation, "Computation", Collision detection.
"""
